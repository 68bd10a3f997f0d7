"""Resumes runs elsewhere: make elastic [OPTIMIZERS="AdamW Muon"] [PRECISIONS=bf16]

Each of {1, 2, 4} processes × ZeRO {0, 1, 2, 3} saves checkpoints, and each of them resumes each: before a cut of ranks,
after one, and in the middle of the late stage; with each optimizer, in fp32 and in bf16. The table compares with the
run on one process at stage 0 that was never stopped: the largest difference of a loss, before and after other ranks are
cut than there, and that of the final size. With the names of some optimizers or precisions only these are tried. The
rows of an optimizer and a precision join the table when they are complete. Ends with status 1 if a difference is larger
than rounding, if ranks differ in fp32, if a run that was resumed where it had been is not the same bit for bit, or if
nothing had been cut where it should.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from forked import run_processes
from support import TINY, cut_back, make_corpus, metrics

from benchmarks.report import RESULTS, report, reported

STEPS = 24
MOMENTS = {"before a cut": 4, "after a cut": 12, "in the late stage": 16}  # steps of checkpoints
RANKS = (
    *("ranks.adapt=true", "ranks.sync_every=4", "ranks.pressure=0.02", "ranks.target_fraction=0.6"),
    *("ranks.late_start=0.25", "ranks.late_end=0.9"),
)
SAVES = ("checkpoint.every=4", "checkpoint.keep=99")
DENSE_BESIDE_RANKS = ("model.format={rest: dense, mlp: tensor}", "tensor.rank=6")
OPTIMIZERS = {
    "AdamW": (),
    "spectral": ("optim.kind=spectral",),
    "Muon": ("optim.kind=muon", *DENSE_BESIDE_RANKS),
    "GaLore": ("optim.kind=galore", "optim.galore={rank: 4, update_every: 5}", *DENSE_BESIDE_RANKS),
}
# Largest difference of a loss in nats while ranks are the same; chosen: in fp32 some twenty roundings of a loss near 4,
# in bf16 less than one, as a loss is a mean over many tokens.
ROUNDING = {"fp32": 1e-5, "bf16": 0.01}
# Muon rounds to bf16 on its way: from 1e-7 in a gradient to 2⁻⁹ in single entries of an update.
ROUNDING_INSIDE = {("Muon", "fp32"): 1e-4}
# Largest differences where other ranks were cut: of the final size, as a share, and of a loss in nats. In bf16 the
# roundings of a micro batch, whose size depends on the number of processes, decide between ranks of nearly equal
# importance; chosen: some ranks of this small model, and a third of what its loss falls by with Muon.
SIZES = {"fp32": 0.0, "bf16": 0.1}
OTHER_RANKS = 0.1


class Place(NamedTuple):
    """Where a run is trained."""

    processes: int
    stage: int

    @property
    def name(self) -> str:
        return f"{self.processes}x{self.stage}"


class Course(NamedTuple):
    """Losses and sizes of all steps of a run, and its ranks after the steps that may change them."""

    losses: list[float]
    sizes: list[int]
    ranks: dict[int, dict]

    def parts_from(self, other: "Course") -> int:
        """The step after which the ranks of two runs differ for the first time; STEPS if they never do."""
        return next((step for step in other.ranks if self.ranks[step] != other.ranks[step]), STEPS)


PLACES = [Place(processes, stage) for processes in (1, 2, 4) for stage in range(4)]


class Matrix:
    """All pairs of `places` with one optimizer in one precision, in the folder `root`, at some of the MOMENTS."""

    def __init__(
        self,
        root: Path,
        corpus: Path,
        optimizer: str,
        precision: str,
        places: Sequence[Place] = PLACES,
        moments: Sequence[str] = tuple(MOMENTS),
    ):
        self._root, self._corpus, self._optimizer, self._precision = root, corpus, optimizer, precision
        self._places, self._moments = places, moments

    def rows(self) -> list[dict]:
        """A row for each moment."""
        self._train({place: [f"from_{place.name}"] for place in self._places}, SAVES)
        one = Place(1, 0)
        if one not in self._places:
            self._train({one: ["from_1x0"]}, SAVES)
        return [self._row(moment, MOMENTS[moment]) for moment in self._moments]

    def _row(self, moment: str, step: int) -> dict:
        pairs = {
            (source, target): cut_back(
                self._root, f"from_{source.name}", f"{source.name}_to_{target.name}_{step}", step
            )
            for target in self._places
            for source in self._places
        }
        self._train({place: [name for (_, target), name in pairs.items() if target == place] for place in self._places})
        one = self._course("from_1x0")
        courses = {pair: self._course(name) for pair, name in pairs.items()}
        alike, apart = differences_of_losses(list(courses.values()), one)
        resized = max(abs(found.sizes[-1] / one.sizes[-1] - 1) for found in courses.values())
        parted = sum(found.ranks != one.ranks for found in courses.values())
        moved = sum(courses[place, place] != self._course(f"from_{place.name}") for place in self._places)
        for name in pairs.values():
            shutil.rmtree(self._root / name)
        limit = ROUNDING_INSIDE.get((self._optimizer, self._precision), ROUNDING[self._precision])
        small = alike <= limit and apart <= OTHER_RANKS and resized <= SIZES[self._precision]
        is_there = (one.sizes[step - 1] < one.sizes[0]) == (moment != "before a cut")
        return {
            "optimizer": self._optimizer,
            "precision": self._precision,
            "resumed": f"{moment}, step {step} of {STEPS}",
            "size": one.sizes[step - 1],
            "pairs": len(pairs),
            "largest difference of a loss": float(f"{alike:.1e}"),
            "after other ranks": float(f"{apart:.1e}"),
            "of the final size": f"{resized:.1%}",
            "other ranks": parted,
            "other bits in the same place": moved,
            "good": is_there and small and not moved and (not parted or self._precision != "fp32"),
        }

    def _course(self, name: str) -> Course:
        steps = metrics(self._root, name)
        syncs = map(json.loads, (self._root / name / "ranks.jsonl").read_text().splitlines())
        ranks = {record["step"]: record["ranks"] for record in syncs}
        return Course([step["loss"] for step in steps], [step["params"] for step in steps], ranks)

    def _train(self, runs: dict[Place, list[str]], more: Sequence[str] = ()) -> None:
        """On one process, on two and on four at the same time: processes that wait for each other leave cores idle."""

        def train(count: int) -> None:
            places = [place for place in runs if place.processes == count]
            here = [[*self._overrides(place, name), *more] for place in places for name in runs[place]]
            statuses = run_processes(count, "train_runs", timeout=60 + 30 * len(here), runs=here)
            assert statuses == [[0] * len(here)] * count, statuses

        with ThreadPoolExecutor() as pool:
            list(pool.map(train, sorted({place.processes for place in runs}, reverse=True)))

    def _overrides(self, place: Place, name: str) -> list[str]:
        return [
            *TINY,
            "model.layers=1",  # each block costs a third of the time, and there are thousands of resumes
            f"data.corpus={self._corpus}",
            f"run.directory={self._root}",
            f"run.name={name}",
            *RANKS,
            *OPTIMIZERS[self._optimizer],
            f"train.steps={STEPS}",
            f"train.precision={self._precision}",
            f"train.zero_stage={place.stage}",
        ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizer", action="append", choices=OPTIMIZERS, help="only this one; may be repeated")
    parser.add_argument("--precision", action="append", choices=ROUNDING, help="only this one; may be repeated")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_corpus(Path(folder) / "corpus")
        found = [
            join(Matrix(Path(folder) / f"{optimizer}_{precision}", corpus, optimizer, precision).rows())
            for optimizer in arguments.optimizer or OPTIMIZERS
            for precision in arguments.precision or ROUNDING
        ]
    return int(not all(row["good"] for rows in found for row in rows))


def differences_of_losses(courses: list[Course], one: Course) -> tuple[float, float]:
    """The largest difference of a loss to `one` while ranks are the same, and afterwards."""
    alike, apart = [0.0], [0.0]
    for found in courses:
        steps, parting = [abs(a - b) for a, b in zip(found.losses, one.losses, strict=True)], found.parts_from(one)
        alike += steps[:parting]
        apart += steps[parting:]
    return max(alike), max(apart)


def join(rows: list[dict]) -> list[dict]:
    """Puts the rows of an optimizer and a precision into the table, in the place of earlier ones; returns them."""
    tried = [(optimizer, precision) for optimizer in OPTIMIZERS for precision in ROUNDING]
    old = reported("elastic") if (RESULTS / "elastic.json").exists() else []
    both = [*(row for row in old if of(row) != of(rows[0])), *rows]
    both.sort(key=lambda row: tried.index(of(row)))
    report("elastic", both, f"{sum(row['pairs'] for row in both)} resumes on other processes and ZeRO stages")
    return rows


def of(row: dict) -> tuple[str, str]:
    return row["optimizer"], row["precision"]


if __name__ == "__main__":
    sys.exit(main())
