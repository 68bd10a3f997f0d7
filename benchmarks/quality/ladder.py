"""Losses of many models at equal tokens and equal search budget: python benchmarks/quality/ladder.py books64

Each side trains at four learning rates on seed 1, then on seeds 2 and 3 at the best of them. All sides see the same
tokens in the same order; the loss is of the whole validation split. Two runs of one thread run at a time. Finished runs
are not repeated and killed ones resume, so the command can be given again at any time. It reports the sides that are
complete. With --alone it measures step time and peak memory instead, one process at a time, sides in turn.
"""

import argparse
import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[2])

from benchmarks.quality.runs import BASE, VOCABULARY, finished_loss, train
from benchmarks.quality.sides import LADDERS, RATES, Ladder
from benchmarks.report import report
from comera_dist.config.reader import read_config
from comera_dist.costs.of_run import estimate, plan_run
from comera_dist.models.base import IN_BLOCK

SEEDS = (1, 2, 3)
ALONE_STEPS, WARM_UP, ALONE_TURNS = 12, 2, 5


@dataclass(frozen=True)
class Runs:
    """The runs of one ladder in a folder."""

    name: str
    ladder: Ladder
    folder: Path

    def run_name(self, side: str, rate: float, seed: int) -> str:
        words = "_".join("".join(c for c in side if c.isalnum() or c == " ").split())
        return f"{self.name}_{words}_{rate:g}_{seed}"

    def loss(self, side: str, rate: float, seed: int) -> float | None:
        """Validation loss of a finished run; infinite if it diverged, None if it is not finished."""
        return finished_loss(self.folder, self.run_name(side, rate, seed))

    def train(self, side: str, rate: float, seed: int, *more: str) -> float:
        """The loss of a run, which is made unless it is finished."""
        overrides = [*self.ladder.base, *self.ladder.sides[side].run(rate), f"run.seed={seed}", *more]
        return train(self.folder, self.run_name(side, rate, seed), overrides)

    def climb(self, side: str, workers: int) -> None:
        """All runs of a side."""
        with ThreadPoolExecutor(workers) as pool:
            losses = list(pool.map(lambda rate: self.train(side, rate, SEEDS[0]), RATES))
            best = RATES[losses.index(min(losses))]
            list(pool.map(lambda seed: self.train(side, best, seed), SEEDS[1:]))

    def row(self, side: str) -> dict[str, Any] | None:
        """The side's row of the table; None until it is complete."""
        searched = [self.loss(side, rate, SEEDS[0]) for rate in RATES]
        found = [loss for loss in searched if loss is not None]
        if len(found) < len(RATES):
            return None
        best = RATES[found.index(min(found))]
        losses = [loss for seed in SEEDS if (loss := self.loss(side, best, seed)) is not None]
        if len(losses) < len(SEEDS):
            return None
        return {
            "side": side,
            **self.sizes(side, self.run_name(side, best, SEEDS[0])),
            "best rate": best,
            "validation loss": round(statistics.mean(losses), 4),
            "lowest": round(min(losses), 4),
            "highest": round(max(losses), 4),
            "search on seed 1": ", ".join(f"{loss:.3f}" for loss in found),
        }

    def sizes(self, side: str, run: str) -> dict[str, Any]:
        """Stored numbers at the end of a run, and training FLOPs."""
        config = read_config(BASE, [*self.ladder.base, *self.ladder.sides[side].run(1.0)])
        costs, plan = estimate(config, vocab_size=VOCABULARY), plan_run(config, VOCABULARY)
        during = [json.loads(line)["params"] for line in (self.folder / run / "metrics.jsonl").read_text().splitlines()]
        # Only block trains are cut here. They do six FLOPs with each number and token.
        per_token = costs.flops_per_token - 6 * (costs.params - statistics.mean(during))
        matrices = sum(p.parameters for name, p in plan.items() if IN_BLOCK.search(name))
        return {
            "parameters": during[-1],
            "of the blocks' matrices": matrices - (costs.params - during[-1]),
            "training TFLOPs": round(per_token * config.total_steps * config.step_tokens / 1e12, 1),
        }

    def alone(self) -> list[dict[str, Any]]:
        """Median step time and highest peak memory of each side; each turn is a process of its own, of one thread."""
        short = (f"train.steps={ALONE_STEPS}", "schedule.warmup_steps=0", "log.every=1", "eval.max_tokens=4096")
        found: dict[str, list[dict[str, Any]]] = {side: [] for side in self.ladder.sides}
        alone = Runs(f"{self.name}_alone", self.ladder, self.folder)
        for turn in range(1, ALONE_TURNS + 1):
            for side in self.ladder.sides:
                alone.train(side, 1.0, turn, *short)
                metrics = self.folder / alone.run_name(side, 1.0, turn) / "metrics.jsonl"
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
    runs = Runs(arguments.ladder, LADDERS[arguments.ladder], arguments.runs)
    if arguments.alone:
        report(f"{runs.name}_alone", runs.alone(), "Steps of 4,096 tokens, one thread, each side alone")
        return
    for side in arguments.side or runs.ladder.sides:
        runs.climb(side, arguments.workers)
    rows = [row for side in runs.ladder.sides if (row := runs.row(side)) is not None]
    if rows:
        report(runs.name, rows, f"Validation loss of the ladder {runs.name}")


if __name__ == "__main__":
    main()
