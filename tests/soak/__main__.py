"""Kills runs at random moments and compares them with runs in peace: make soak [MINUTES=20] [SEED=0]

Signals KILL, TERM, INT, USR1 and STOP hit one process, all of them, or DeepSpeed's launcher, at any moment and inside
saves, cuts of ranks and validations. Each start must end with the status that the command promises, leave no process
behind, and print no traceback. The finished run must have the figures, ranks, weights and moments of the run in peace,
bit for bit. Three campaigns run at a time, as each waits often. Ends with status 1 if anything was wrong; every
campaign has its seed printed.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from soak.attacks import drawn
from soak.campaigns import Report, Subject, attacked, in_peace
from support import TINY, WORKLOADS, make_clicks, make_corpus

from benchmarks.report import report

SECONDS, MOST = 4.0, 25  # chosen: about the length of a run in peace, and attacks on one run before it may finish
CAMPAIGNS = 3  # at a time; chosen for two cores: a process that is stopped, or waits for one, leaves its core idle
STEPS = ("train.steps=240", "checkpoint.every=12", "eval.every=30", "log.every=1")
RANKS = ("ranks.adapt=true", "ranks.sync_every=10", "ranks.target_fraction=0.6", "ranks.pressure=0.02")


def subjects(data: Path) -> list[Subject]:
    """Runs of different kinds, on generated data in the folder `data`."""
    text, clicks = make_corpus(data / "text"), make_clicks(data / "clicks")
    decoder, dlrm = (*TINY, *STEPS, f"data.corpus={text}"), (*WORKLOADS["dlrm"], *STEPS, f"data.corpus={clicks}")
    return [
        Subject("ranks adapt, ZeRO 0", 2, (*decoder, *RANKS, "train.zero_stage=0")),
        Subject("ranks adapt, ZeRO 1", 2, (*decoder, *RANKS, "train.zero_stage=1")),
        Subject("ranks adapt, ZeRO 3", 2, (*decoder, *RANKS, "train.zero_stage=3")),
        Subject("spectral, ZeRO 2", 2, (*decoder, *RANKS, "optim.kind=spectral", "train.zero_stage=2")),
        Subject("dense, one process", 1, (*decoder, "model.format=dense", "train.zero_stage=0")),
        Subject("clicks, ZeRO 1", 2, (*dlrm, "train.zero_stage=1")),
        Subject("launcher, ZeRO 1", 2, (*decoder, *RANKS, "train.zero_stage=1"), has_launcher=True),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as folder:
        places = {subject: Path(folder) / subject.name for subject in subjects(Path(folder) / "data")}
        for subject, place in places.items():
            in_peace(subject, place)
        seeds = count(arguments.seed)

        def fight() -> list[Report]:
            found = []
            while time.monotonic() < end:
                seed = next(seeds)
                subject, place = list(places.items())[seed % len(places)]
                attacks = drawn(seed, subject.processes, subject.targets, SECONDS, MOST)
                found.append(attacked(subject, place, f"war_{seed}", attacks))
                print(in_words(found[-1], seed), flush=True)
            return found

        with ThreadPoolExecutor(CAMPAIGNS) as pool:
            workers = [pool.submit(fight) for _ in range(CAMPAIGNS)]
            reports = [one for worker in workers for one in worker.result()]
    show(reports)
    return int(any(one.faults for one in reports))


def in_words(found: Report, seed: int) -> str:
    said = f"seed {seed}: {found.subject}: {len(found.attacks)} attacks, {found.starts} starts"
    return "\n  ".join([said, *found.faults])


def show(reports: list[Report]) -> None:
    """The table: how often each kind of attack was made, and how many campaigns ended as in peace."""
    kinds = Counter(attack.kind for one in reports for attack in one.attacks)
    rows = [{"signal, target, moment": kind, "attacks": count} for kind, count in sorted(kinds.items())]
    whole = sum(not one.faults for one in reports)
    title = f"{sum(kinds.values())} attacks in {len(reports)} campaigns, of which {whole} ended as in peace"
    report("soak", rows, title)


if __name__ == "__main__":
    sys.exit(main())
