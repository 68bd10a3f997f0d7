"""Runs of the ladders' base, each trained once by the usual command on one thread."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from comera_dist.runtime.endings import TRY_AGAIN_STATUS

BASE = Path(__file__).parent / "books.yaml"
VOCABULARY = 1024  # of the corpus


def finished_loss(folder: Path, name: str) -> float | None:
    """Validation loss of a finished run; infinite if it diverged, None if it is not finished."""
    summary = folder / name / "summary.json"
    if not summary.exists():
        return None
    loss = json.loads(summary.read_text())["val_loss"]
    return float("inf") if loss is None else float(loss)


def train(folder: Path, name: str, overrides: Sequence[str]) -> float:
    """The loss of a run, which is made unless it is finished. A run that made steps and has no loss has diverged."""
    found = finished_loss(folder, name)
    if found is None:
        status = _pretrain(folder, name, overrides)
        found = finished_loss(folder, name)
        if found is None and status == TRY_AGAIN_STATUS:
            raise SystemExit(f"{name} was stopped; give the command again")
        if found is None and not (folder / name / "metrics.jsonl").exists():
            raise SystemExit(f"{name} made no step; see {folder}/output/{name}.txt")
    return float("inf") if found is None else found


def _pretrain(folder: Path, name: str, overrides: Sequence[str]) -> int:
    """Exit status of launch/pretrain.py, whose output is kept beside the runs."""
    (folder / "output").mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "launch/pretrain.py", "--config", str(BASE), *overrides]
    with (folder / "output" / f"{name}.txt").open("a") as output:
        return subprocess.run(
            [*command, f"run.directory={folder}", f"run.name={name}"],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        ).returncode
