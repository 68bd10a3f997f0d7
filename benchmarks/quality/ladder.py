"""Losses of many models at equal tokens and equal search budget: python benchmarks/quality/ladder.py books64

Each side trains at the ladder's learning rates on seed 1; while the best of them is the lowest or the highest, also at
half or twice of it. Then it trains on seeds 2 and 3 at the best. All sides see the same tokens in the same order; the
loss is of the whole validation split. Two runs of one thread run at a time. Killed runs resume, and
benchmarks/results/ladder_runs.json records finished ones by their settings: no machine and no other ladder repeats
them, and the command can be given again at any time and place. It reports the sides that are complete.
With --alone it measures step time and peak memory instead, one process at a time, sides in turn; sides whose ranks
change have no step time that holds for the run, and are left out.
"""

import argparse
import hashlib
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[2])

from benchmarks.quality.ladders import LADDERS
from benchmarks.quality.runs import BASE, VOCABULARY, train
from benchmarks.quality.sides import Ladder
from benchmarks.report import RESULTS, report
from comera_dist.config.reader import read_config
from comera_dist.costs.of_run import estimate, plan_run
from comera_dist.formats.base import FP32
from comera_dist.models.base import IN_BLOCK

SEEDS = (1, 2, 3)
ALONE_STEPS, WARM_UP, ALONE_TURNS = 12, 2, 5
ALONE = (f"train.steps={ALONE_STEPS}", "schedule.warmup_steps=0", "log.every=1", "eval.max_tokens=4096")


class Finished(NamedTuple):
    """A finished run."""

    loss: float  # on the whole validation split; infinite if the run diverged
    params: int  # stored at the end
    flops_per_token: float  # of training, on average over the logged steps


class Searched(NamedTuple):
    """Losses of rates on seed 1, and the next rate that is to be tried; None if the search is complete."""

    losses: dict[float, float]
    lacks: float | None


def best_rate(losses: Mapping[float, float]) -> float:
    return min(losses, key=lambda rate: losses[rate])


def of_seeds(losses: Sequence[float]) -> dict[str, float]:
    """The mean and the range of a side's losses, as a table has them."""
    return {
        "validation loss": round(statistics.mean(losses), 4),
        "lowest": round(min(losses), 4),
        "highest": round(max(losses), 4),
    }


def next_rate(losses: Mapping[float, float]) -> float | None:
    """Half of the lowest rate or twice the highest if it has the lowest loss; None if one between them has it."""
    best = best_rate(losses)
    if best == min(losses):
        return best / 2
    return 2 * best if best == max(losses) else None


def run_name(side: str, settings: tuple[str, ...]) -> str:
    """Name of a run's folder: words for people, and a digest because ladders may share a side's name."""
    words = "_".join("".join(c for c in side if c.isalnum() or c == " ").split())
    return f"{words}_{hashlib.sha256(' '.join(settings).encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Runs:
    """The runs of a ladder: their folder, and the file that records the finished runs of all ladders."""

    ladder: Ladder
    folder: Path
    record: Path = RESULTS / "ladder_runs.json"
    writing: Lock = field(default_factory=Lock)  # runs end in threads

    def settings(self, side: str, rate: float, seed: int, *more: str) -> tuple[str, ...]:
        """All overrides of a run, each key once, in the order of the keys."""
        overrides = [*self.ladder.base, *self.ladder.sides[side].run(rate), f"run.seed={seed}", *more]
        values = dict(override.split("=", 1) for override in overrides)
        return tuple(f"{key}={values[key]}" for key in sorted(values))

    def recorded(self) -> dict[str, Finished]:
        """All recorded runs by their settings."""
        runs: dict[str, dict[str, Any]] = json.loads(self.record.read_text()) if self.record.exists() else {}
        return {
            settings: Finished(**(run | {"loss": math.inf if run["loss"] is None else run["loss"]}))
            for settings, run in runs.items()
        }

    def finished(self, side: str, rate: float, seed: int) -> Finished | None:
        """A recorded run; None if it is not finished."""
        return self.recorded().get(" ".join(self.settings(side, rate, seed)))

    def finish(self, side: str, rate: float, seed: int) -> float:
        """The loss of a run, which is made and recorded unless it is recorded."""
        found = self.finished(side, rate, seed)
        if found is None:
            settings = self.settings(side, rate, seed)
            name = run_name(side, settings)
            found = Finished(train(self.folder, name, settings), *self._size_and_work(name))
            with self.writing:
                self._write(self.recorded() | {" ".join(settings): found})
        return found.loss

    def _size_and_work(self, run: str) -> tuple[int, float]:
        """Stored numbers at the end, and FLOPs of a token."""
        lines = [json.loads(line) for line in (self.folder / run / "metrics.jsonl").read_text().splitlines()]
        return lines[-1]["params"], statistics.mean(line["flops_per_token"] for line in lines)

    def _write(self, runs: dict[str, Finished]) -> None:
        # JSON has no infinity.
        rows = {
            settings: run._asdict() | ({} if math.isfinite(run.loss) else {"loss": None})
            for settings, run in runs.items()
        }
        unfinished = self.record.with_suffix(".new")  # other threads read the record meanwhile
        unfinished.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
        unfinished.replace(self.record)

    def climb(self, side: str, workers: int) -> None:
        """All runs of a side."""
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda rate: self.finish(side, rate, SEEDS[0]), self.ladder.rates))
            while (lacks := self.searched(side).lacks) is not None:
                self.finish(side, lacks, SEEDS[0])
            best = best_rate(self.searched(side).losses)
            list(pool.map(lambda seed: self.finish(side, best, seed), SEEDS[1:]))

    def searched(self, side: str) -> Searched:
        """The recorded part of a side's search."""
        losses: dict[float, float] = {}
        left = [*self.ladder.rates]
        while left:
            rate = left.pop(0)
            if (run := self.finished(side, rate, SEEDS[0])) is None:
                return Searched(losses, rate)
            losses[rate] = run.loss
            if not left and (beyond := next_rate(losses)) is not None:
                left.append(beyond)
        return Searched(losses, None)

    def row(self, side: str) -> dict[str, Any] | None:
        """The side's row of the table; None until it is complete."""
        found, lacks = self.searched(side)
        if lacks is not None:
            return None
        best = best_rate(found)
        runs = [run for seed in SEEDS if (run := self.finished(side, best, seed)) is not None]
        if len(runs) < len(SEEDS):
            return None
        return {
            "side": side,
            **self.sizes(side, runs[0]),
            "best rate": best,
            **of_seeds([run.loss for run in runs]),
            "search on seed 1": ", ".join(f"{rate:g}: {loss:.3f}" for rate, loss in sorted(found.items())),
        }

    def sizes(self, side: str, run: Finished) -> dict[str, Any]:
        """Stored numbers at the end of a run, and training FLOPs."""
        config = read_config(BASE, [*self.ladder.base, *self.ladder.sides[side].run(1.0)])
        costs, plan = estimate(config, vocab_size=VOCABULARY), plan_run(config, VOCABULARY)
        matrices = sum(p.parameters for name, p in plan.items() if IN_BLOCK.search(name))
        return {
            "parameters": run.params,
            "of the blocks' matrices": matrices - (costs.params - run.params),  # they alone are cut
            "training TFLOPs": round(run.flops_per_token * config.total_tokens / 1e12, 1),
            # Weights, gradients and the optimizer's numbers; then the latter alone. Both before ranks are cut: a
            # device must hold them then. In fp32 at ZeRO stage 0 there are no further copies of weights.
            "state MiB at the start": round(costs.state_bytes_per_process / 2**20, 2),
            "optimizer MiB at the start": round((costs.state_bytes_per_process - 2 * FP32 * costs.params) / 2**20, 2),
        }

    def alone(self) -> list[dict[str, Any]]:
        """Median step time and highest peak memory of each side; each turn is a process of its own, of one thread."""
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in self.ladder.fixed()}
        for turn in range(1, ALONE_TURNS + 1):
            for side in found:
                settings = self.settings(side, 1.0, turn, *ALONE, *self.ladder.sides[side].alone)
                train(self.folder, run_name(side, settings), settings)
                metrics = self.folder / run_name(side, settings) / "metrics.jsonl"
                found[side] += [json.loads(line) for line in metrics.read_text().splitlines()[WARM_UP:]]
        return [
            {
                "side": side,
                "step ms": round(statistics.median(step["step_ms"] for step in steps)),
                "peak MiB": round(max(step["peak_memory_bytes"] for step in steps) / 2**20),
            }
            for side, steps in found.items()
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ladder", choices=LADDERS)
    parser.add_argument("--side", action="append", help="only this side; may be given several times")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    parser.add_argument("--alone", action="store_true", help="measure step time and peak memory instead")
    parser.add_argument("--runs", type=Path, default=Path("runs/ladder"), help="folder of the runs")
    arguments = parser.parse_args()
    runs = Runs(LADDERS[arguments.ladder], arguments.runs)
    if arguments.alone:
        report(f"{arguments.ladder}_alone", runs.alone(), "Steps of 4,096 tokens, one thread, each side alone")
        return
    for side in arguments.side or runs.ladder.sides:
        runs.climb(side, arguments.workers)
    rows = [row for side in runs.ladder.sides if (row := runs.row(side)) is not None]
    if rows:
        report(arguments.ladder, rows, f"Validation loss of the ladder {arguments.ladder}")


if __name__ == "__main__":
    main()
