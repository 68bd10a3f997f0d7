"""The command as a person starts it: stopped, resumed, and given bad input. test_supervised.py kills it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
from forked import end_processes, run_processes
from support import ROOT, environment, free_port, losses, metrics, tiny_run

pytestmark = pytest.mark.distributed
COMMAND = [str(ROOT / "launch/pretrain.py"), "--config", str(ROOT / "tests/defaults.yaml")]
LAUNCHER = [f"{os.path.dirname(sys.executable)}/deepspeed", "--num_accelerators", "2", "--master_port"]


def deepspeed(overrides: list[str], **options):
    return subprocess.Popen([*LAUNCHER, free_port(), *COMMAND, *overrides], env=environment(), cwd=ROOT, **options)


def pretrain(*overrides: str, **extra: str) -> subprocess.CompletedProcess:
    """One process, without a launcher."""
    command = [sys.executable, *COMMAND, *overrides]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment(**extra), cwd=ROOT)


def forked(*overrides: str) -> subprocess.CompletedProcess:
    """The same command in a process that has imported everything, which saves seconds."""
    (ended,) = end_processes(1, "pretrain", overrides=overrides)
    return subprocess.CompletedProcess(overrides, ended.status, ended.out, ended.err)


def wait_for(condition, seconds=200):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def test_sigterm_to_the_launcher_leaves_no_process_and_a_checkpoint(tiny_corpus, tmp_path):
    keys = ["schedule.warmup_steps=0", "train.steps=100000", "wandb.mode=offline"]
    run, log = tiny_run(tiny_corpus, tmp_path, "stopped", *keys), tmp_path / "stopped/metrics.jsonl"
    with (tmp_path / "log").open("w") as out:
        launcher = deepspeed(run, stdout=out, stderr=out)
        try:
            wait_for(lambda: log.exists() and log.stat().st_size)
            family = psutil.Process(launcher.pid).children(recursive=True)
            launcher.send_signal(signal.SIGTERM)
            launcher.wait(timeout=60)
        finally:
            launcher.kill()
        psutil.wait_procs(family, timeout=60)
    output = (tmp_path / "log").read_text()
    assert not any(process.is_running() for process in family)
    assert "Stopped by the end of its launcher at step" in output
    assert "Traceback" not in output
    step = int((tmp_path / "stopped/checkpoints/LATEST").read_text().removeprefix("step_"))
    run_processes(2, "train_runs", runs=[[*run, f"train.steps={step + 2}"]])
    assert [record["step"] for record in metrics(tmp_path, "stopped")] == list(range(1, step + 3))


def test_a_mistake_is_said_once_by_two_processes(tiny_corpus, tmp_path):
    run = tiny_run(tiny_corpus, tmp_path, "x", "data.corpus=nowhere", "schedule.warmup_steps=0")
    ended = end_processes(2, "pretrain", overrides=run)
    assert [one.status for one in ended] == [2, 2]
    said = "".join(one.out + one.err for one in ended)
    assert said.count("no data set at nowhere") == 1
    assert "Traceback" not in said


@pytest.fixture(scope="module")
def finished(tiny_corpus, tmp_path_factory):
    """A finished run with two checkpoints, to damage copies of."""
    directory = tmp_path_factory.mktemp("finished")
    keys = ["schedule.warmup_steps=0", "checkpoint.every=4", "log.plots=true", "wandb.mode=disabled"]
    assert pretrain(*tiny_run(tiny_corpus, directory, "run", *keys)).returncode == 0
    return directory, keys


def copy_of(finished, tmp_path):
    directory, keys = finished
    shutil.copytree(directory / "run", tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    return keys


def refused(done: subprocess.CompletedProcess) -> str:
    """The one sentence of a refusal."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    sentences = [line for line in done.stderr.splitlines() if "Error: " in line]
    assert len(sentences) == 1
    return sentences[0]


def test_misspelt_key(tiny_corpus, tmp_path):
    done = pretrain(*tiny_run(tiny_corpus, tmp_path, "x", "train.zero_stge=1"))
    assert "train.zero_stge is not a known key; did you mean train.zero_stage?" in done.stderr
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_negative_rank(tiny_corpus, tmp_path):
    done = pretrain(*tiny_run(tiny_corpus, tmp_path, "x", "tensor.rank=-4", "schedule.warmup_steps=0"))
    assert "tensor.rank = -4 is not possible: input should be greater than 0" in refused(done)


def test_truncated_shard(tiny_corpus, tmp_path):
    shutil.copytree(tiny_corpus, tmp_path / "corpus")
    os.truncate(tmp_path / "corpus/train/00000.bin", 100)
    done = forked(*tiny_run(tmp_path / "corpus", tmp_path, "x", "schedule.warmup_steps=0"))
    assert "00000.bin has 100 bytes, the manifest says 12000" in refused(done)


def test_corrupt_checkpoint_falls_back_to_the_one_before(tiny_corpus, finished, tmp_path):
    keys = copy_of(finished, tmp_path)
    os.truncate(next((tmp_path / "run/checkpoints/step_0000008").glob("shard*")), 10)
    done = forked(*tiny_run(tiny_corpus, tmp_path, "run", *keys))
    assert done.returncode == 0, done.stderr
    assert "step_0000008 is passed over" in done.stdout
    assert "Resumed from" in done.stdout
    assert losses(tmp_path, "run") == losses(finished[0], "run")


def test_another_model_in_the_same_run_is_refused(tiny_corpus, finished, tmp_path):
    keys = copy_of(finished, tmp_path)
    done = forked(*tiny_run(tiny_corpus, tmp_path, "run", *keys, "tensor.rank=3"))
    assert "tensor.rank = 3 and the run's checkpoint was trained with 4; set it back" in refused(done)


def test_another_corpus_in_the_same_run_is_refused(tiny_corpus, finished, tmp_path):
    keys = copy_of(finished, tmp_path)
    shutil.copytree(tiny_corpus, tmp_path / "corpus")
    manifest = tmp_path / "corpus/manifest.json"
    manifest.write_text(manifest.read_text().replace('"generated"', '"another"'))
    assert "name the corpus of the checkpoint" in refused(
        forked(*tiny_run(tmp_path / "corpus", tmp_path, "run", *keys))
    )


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_checkpoint(tiny_corpus, finished, tmp_path):
    keys = copy_of(finished, tmp_path)
    wild = ["train.steps=60", "optim.lr=1e12", "train.grad_clip=0"]
    done = forked(*tiny_run(tiny_corpus, tmp_path, "run", *keys, *wild))
    assert "expected finite numbers; the checkpoint of step 8 is intact" in refused(done)
    assert (tmp_path / "run/checkpoints/step_0000008/manifest.json").exists()


def test_wandb_without_network_goes_offline_and_loses_nothing(tiny_corpus, tmp_path):
    keys = ["wandb.mode=online", "schedule.warmup_steps=0", "train.steps=2"]
    unreachable = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40, "WANDB_INIT_TIMEOUT": "1"}
    done = pretrain(*tiny_run(tiny_corpus, tmp_path, "x", *keys), **unreachable)
    assert done.returncode == 0, done.stderr
    assert "Weights & Biases cannot be reached" in done.stdout
    assert len(losses(tmp_path, "x")) == 2
    assert list((tmp_path / "x/wandb").glob("offline-run-*"))


def test_a_finished_run_says_so(tiny_corpus, finished):
    directory, keys = finished
    done = forked(*tiny_run(tiny_corpus, directory, "run", *keys))
    assert done.returncode == 0
    assert "is already finished" in done.stdout
    assert "Compression" in done.stdout


def test_run_directory_holds_what_others_read(finished):
    run = finished[0] / "run"
    record = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert record.keys() == {
        "step", "tokens", "targets", "loss", "lr", "grad_norm", "tokens_per_second", "step_ms", "peak_memory_bytes",
        "params", "size_bytes", "stage", "mean_rank", "gate_drift", "data_wait_fraction", "val_loss",
        "val_bits_per_byte", "flops_per_token", "flops_per_second",
    }  # fmt: skip
    summary = json.loads((run / "summary.json").read_text())
    assert summary.keys() == {
        "val_loss", "val_bits_per_byte", "step", "ended_by", "params", "dense_params", "compression", "tokens", "unit",
        "wall_seconds", "ranks",
    }  # fmt: skip
    assert json.loads((run / "run.json").read_text()).keys() >= {"git", "versions", "world_size"}
    assert {p.name for p in (run / "plots").glob("*.png")} == {"loss.png", "speed.png"}
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in (run / "plots").glob("*.png"))
    assert (run / "checkpoints/LATEST").read_text() == "step_0000008\n"
    assert (run / "config.yaml").exists()
    assert (run / "ranks.jsonl").exists()
