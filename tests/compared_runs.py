"""Run directories as the trainer leaves them, written from generated records for the page that compares runs."""

import json

START = {"step": 0, "ranks": {"model.a<b>": [8], "lm_head": []}}
SYNCS = [
    START,
    {"step": 2, "stage": "late", "cut": 3, "ranks": {"model.a<b>": [5]}, "effective": {"model.a<b>": [6.0]}},
]
SUMMARY = {"val_loss": 2.25, "val_auc": 0.5, "params": 600, "dense_params": 2400, "compression": 4.0, "tokens": 50}


def metric(step, **more):
    common = {"tokens_per_second": 100.0 * step, "step_ms": 1000.0, "flops_per_token": 3000.0, "params": 600}
    return {"step": step, "tokens": 10 * step, "loss": 9 / step, "peak_memory_bytes": 2**20 * step, **common, **more}


NORMS = [{"step": step, "update_ratio": {"model.a<b>": 0.1 / step, "lm_head": None}} for step in (1, 2)]


def write_run(
    path, config="model:\n  kind: decoder\ntrain:\n  steps: 10\n", records=(), syncs=(START,), summary=None, norms=()
):
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(config)
    for name, lines in (("metrics.jsonl", records), ("ranks.jsonl", syncs), ("norms.jsonl", norms)):
        (path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "run.json").write_text(json.dumps({"world_size": 2, "git": "0123456789abcdef", "starts": [{}, {}]}))
    if summary is not None:
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def finished(path, **more):
    records = [metric(step) for step in range(1, 5)] + [metric(5, val_loss=2.25)]
    return write_run(path, records=records, summary={**SUMMARY, "wall_seconds": 75.0}, **more)
