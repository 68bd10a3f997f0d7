"""A supervised run under DeepSpeed's launcher goes on by itself when a process is killed."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from support import ROOT, environment, free_port, losses, run_processes, tiny_run

pytestmark = pytest.mark.distributed


def test_a_killed_run_is_finished_without_a_hand(tiny_corpus, tmp_path):
    keys = ("train.steps=150", "checkpoint.every=15", "eval.every=0", "schedule.warmup_steps=0")
    run, folder = tiny_run(tiny_corpus, tmp_path, "killed", *keys), tmp_path / "killed"
    launcher = [f"{os.path.dirname(sys.executable)}/deepspeed", "--num_accelerators", "2", "--master_port", free_port()]
    command = [*launcher, str(ROOT / "launch/pretrain.py"), "--config", str(ROOT / "tests/defaults.yaml"), *run]
    supervise = [sys.executable, str(ROOT / "launch/supervise.py"), "--run", str(folder), "--pause", "0.1", "--"]
    with (tmp_path / "output").open("w") as output:
        supervisor = subprocess.Popen([*supervise, *command], stdout=output, stderr=output, env=environment(), cwd=ROOT)
        while not list(folder.glob("checkpoints/step_*")):
            assert supervisor.poll() is None, (tmp_path / "output").read_text()
            time.sleep(0.01)
        below = psutil.Process(supervisor.pid).children(recursive=True)
        next(one for one in below if "--local_rank=1" in one.cmdline()).send_signal(signal.SIGKILL)
        assert supervisor.wait(timeout=120) == 0, (tmp_path / "output").read_text()
    starts = json.loads((folder / "run.json").read_text())["starts"]
    assert [start["step"] > 0 for start in starts] == [False, True]
    run_processes(2, "train_runs", runs=[tiny_run(tiny_corpus, tmp_path, "straight", *keys)])
    assert losses(tmp_path, "killed") == losses(tmp_path, "straight")
