"""A finished or unfinished run as its directory describes it."""

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from comera_dist.config.registry import KINDS
from comera_dist.config.yaml_tree import NotATree, flat, read_tree
from comera_dist.errors import RunDirectoryError
from comera_dist.report.norm_plots import read_updates
from comera_dist.storage.files import is_finite_number
from comera_dist.storage.run_directory import Record, RunDirectory


@dataclass(frozen=True)
class RunFiles:
    """`records` are those of metrics.jsonl, `syncs` those of ranks.jsonl, `norms` what is drawn of those of
    norms.jsonl, `facts` are run.json.

    `summary` is empty until the run is finished.
    """

    name: str
    config_text: str
    config: dict[str, Any]  # values by "section.key"
    facts: Record
    records: list[Record]
    syncs: list[Record]
    norms: list[Record]
    summary: Record

    @property
    def unit(self) -> str:
        """The plural in which the run counts its data. Kinds from outside tell it when they are finished."""
        kind = self.config.get("model.kind")
        known: str = KINDS[kind].unit if kind in KINDS.names() else self.summary.get("unit", "tokens")
        return known

    def column(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of the records that have a finite number under `key`."""
        found = [(record["step"], record[key]) for record in self.records if is_finite_number(record.get(key))]
        return [step for step, _ in found], [value for _, value in found]

    def seconds(self) -> list[float]:
        """Seconds of training steps up to each record, without validations and pauses. NaN if a record lacks them."""
        seconds, last, sums = 0.0, 0, []
        for record in self.records:
            milliseconds = record.get("step_ms")
            seconds += (record["step"] - last) * (milliseconds if is_finite_number(milliseconds) else math.nan) / 1000
            last = record["step"]
            sums.append(seconds)
        return sums


def units_of(runs: list[RunFiles]) -> str:
    """The units of all runs in words."""
    return " or ".join(dict.fromkeys(run.unit for run in runs))


def read_runs(paths: list[Path]) -> list[RunFiles]:
    """The runs in these directories. Runs of equal names are named by their paths. Raises RunDirectoryError."""
    runs = [read_run(path) for path in paths]
    names = [run.name for run in runs]
    return [
        run if names.count(run.name) == 1 else replace(run, name=str(path))
        for run, path in zip(runs, paths, strict=True)
    ]


def read_run(path: Path) -> RunFiles:
    """Raises RunDirectoryError if `path` is not the directory of a run, or cannot be read."""
    directory = RunDirectory(path)
    if not os.path.isfile(path / "config.yaml"):
        raise RunDirectoryError(f"{path} has no config.yaml; name the directory of a run, e.g. runs/quickstart")
    try:
        text = (path / "config.yaml").read_text()
        return RunFiles(
            name=path.resolve().name,
            config_text=text,
            config=flat(tree) if isinstance(tree := read_tree(text), dict) else {},
            facts=directory.facts(),
            records=_last_of_each_step(directory.read("metrics.jsonl")),
            syncs=[sync for sync in directory.read("ranks.jsonl") if isinstance(sync.get("ranks"), dict)],
            norms=read_updates(directory.records("norms.jsonl")),
            summary=directory.read_summary() or {},
        )
    except (OSError, UnicodeDecodeError, NotATree) as error:
        raise RunDirectoryError(f"the files of {path} cannot be read ({error}); copy the run again") from error


def _last_of_each_step(records: list[Record]) -> list[Record]:
    """Somebody may have put logs together that have steps in common."""
    return list({record["step"]: record for record in records}.values())
