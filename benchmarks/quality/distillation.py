"""Losses of decoders that learn from a larger one: python benchmarks/quality/distillation.py

Students and teachers are sides of the ladders at the rate 1, which is the best of each without a teacher. Each student
learns from one model of each teacher (seed 1) on three seeds. Then a teacher is compressed and trained for some more
steps with and without itself as a teacher, at three rates. All see the tokens of books64 in the same order.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[2])

from benchmarks.quality.ladder import SEEDS, Runs, of_seeds, run_name
from benchmarks.quality.ladders import LADDERS
from benchmarks.quality.runs import train
from benchmarks.report import report
from comera_dist.commands.compress import TOKENS
from comera_dist.compress.compress_run import compress_run

SHARED, WIDER = LADDERS["sharing64"], LADDERS["bigrams64"]
TEACHERS = {"dense": SHARED, "wider dense d=96": WIDER}
STUDENTS = [
    ("all from two", "dense"),
    ("all from two", "wider dense d=96"),
    ("narrow dense d=48", "dense"),
    ("narrow dense d=48", "wider dense d=96"),
    ("dense", "wider dense d=96"),
]
PARAMS, STEPS, RATES, SHARES = 166_382, 200, (0.5, 1.0, 2.0), (None, 0.5, 0.9)  # of the compressed teacher


def taught(runs: Runs, student: str, teacher: str, seed: int) -> float:
    """The loss of a student."""
    settings = runs.settings(student, 1.0, seed, f"train.teacher.run={trained(runs.folder, teacher)}")
    return train(runs.folder, run_name(student, settings), settings)


def trained(folder: Path, teacher: str) -> Path:
    """The directory of a teacher, which is trained unless it is finished."""
    settings = Runs(TEACHERS[teacher], folder).settings(teacher, 1.0, SEEDS[0])
    name = run_name(teacher, settings)
    train(folder, name, settings)
    return folder / name


def students(runs: Runs, pool: ThreadPoolExecutor) -> Iterator[dict[str, Any]]:
    list(pool.map(lambda teacher: trained(runs.folder, teacher), TEACHERS))
    pairs = list(product(STUDENTS, SEEDS))
    by_pair = dict(zip(pairs, pool.map(lambda pair: taught(runs, *pair[0], pair[1]), pairs), strict=True))
    for student, teacher in STUDENTS:
        found = [runs.finished(student, 1.0, seed) for seed in SEEDS]
        yield {
            "student": student,
            "teacher": teacher,
            **of_seeds([by_pair[(student, teacher), seed] for seed in SEEDS]),
            "without teacher": round(statistics.mean(run.loss for run in found if run is not None), 4),
        }


def recovered(runs: Runs) -> Iterator[dict[str, Any]]:
    teacher, small = trained(runs.folder, "dense"), runs.folder / "compressed_teacher"
    if not small.exists():
        compress_run(teacher, None, small, PARAMS, "low_rank", TOKENS, None)
    for share in SHARES:
        lesson = [] if share is None else [f"train.teacher.run={teacher}", f"train.teacher.share={share}"]
        losses = {}
        for rate in RATES:
            more = f"run.start_from={small}", f"train.steps={STEPS}", *lesson
            settings = runs.settings("dense", rate, SEEDS[0], *more)
            losses[rate] = train(runs.folder, run_name("recovered", settings), settings)
        yield {
            "share of the teacher": share or 0,
            **{f"rate {rate:g}": round(loss, 4) for rate, loss in losses.items()},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/distillation"), help="folder of the runs")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    arguments = parser.parse_args()
    runs = Runs(SHARED, arguments.runs)
    with ThreadPoolExecutor(arguments.workers) as pool:
        taught_students = list(students(runs, pool))
    report("distillation", taught_students, "Validation loss of models that learn from a larger one")
    report("recovered", list(recovered(runs)), "Validation loss after compression and some steps with a teacher")


if __name__ == "__main__":
    main()
