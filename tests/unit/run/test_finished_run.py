"""A finished run that is started again trains no further."""

import json

from checkpointed import save

from comera_dist.config.reader import read_config
from comera_dist.run.loop import run_or_resume
from comera_dist.runtime.processes import alone

SUMMARY = {"val_loss": 1.0, "params": 2, "dense_params": 2, "compression": 1.0, "tokens": 4, "wall_seconds": 1.0}


def test_the_copy_that_a_kill_has_cut_short_is_completed(tmp_path):
    run, remote = tmp_path / "a", tmp_path / "remote/a"
    for step in (10, 20, 30, 40):
        save(run / "checkpoints", step)
    (run / "run.json").write_text("{}")
    (run / "summary.json").write_text(json.dumps(SUMMARY | {"step": 40, "best_step": 20}))
    keys = ["train.steps=40", "checkpoint.keep=1", f"run.directory={tmp_path}", "run.name=a"]
    config = read_config(None, [*keys, f"checkpoint.mirror=file://{tmp_path}/remote"])
    assert run_or_resume(config, alone()) == 0
    assert (remote / "summary.json").read_bytes() == (run / "summary.json").read_bytes()
    manifests = remote.glob("checkpoints/*/manifest.json")
    assert {path.parent.name for path in manifests} == {"step_0000020", "step_0000040"}, "the newest and the best"
