"""Runs of the ladders' base, each trained once by the usual command on one thread."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from comera_dist.commands.arguments import MISTAKE_STATUS
from comera_dist.runtime.endings import TRY_AGAIN_STATUS
from comera_dist.storage.run_directory import RunDirectory

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
    """The loss of a run, which is made unless it is finished; infinite if it diverged.

    Ends this command if the run was stopped or killed, is trained by another process, or made no step: none of these is
    a divergence, and its loss would stand in the record for good.
    """
    found = finished_loss(folder, name)
    if found is None:
        status = _pretrain(folder, name, overrides)
        found = finished_loss(folder, name)
        if found is None:
            _check_diverged(folder, name, status)
    return float("inf") if found is None else found


def _check_diverged(folder: Path, name: str, status: int) -> None:
    """Ends this command unless the run, which has no loss, made steps and then refused to go on."""
    if (holder := RunDirectory(folder / name).holder()) is not None:
        raise SystemExit(f"{name} is being trained by {holder}; give the command again when that has ended")
    if status == TRY_AGAIN_STATUS:
        raise SystemExit(f"{name} was stopped; give the command again")
    if not (folder / name / "metrics.jsonl").exists():
        raise SystemExit(f"{name} made no step; see {folder}/output/{name}.txt")
    if status != MISTAKE_STATUS:
        raise SystemExit(
            f"{name} ended with status {status}; see {folder}/output/{name}.txt and give the command again"
        )


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
