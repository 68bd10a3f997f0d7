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
from typing import Any, NamedTuple

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[2])

from benchmarks.quality.ladder import SEEDS, Runs, of_seeds, run_name
from benchmarks.quality.ladders import LADDERS
from benchmarks.quality.runs import train
from benchmarks.report import report
from comera_dist.commands.compress import TOKENS
from comera_dist.compress.compress_run import compress_run


class Student(NamedTuple):
    """A side of a ladder, and the teacher that it learns from."""

    ladder: str
    side: str
    teacher: str


TEACHERS = {"dense": LADDERS["sharing64"], "wider dense d=96": LADDERS["bigrams64"]}
STUDENTS = [
    Student("sharing64", "all from two", "dense"),
    Student("sharing64", "all from two", "wider dense d=96"),
    Student("sharing64", "narrow dense d=48", "dense"),
    Student("sharing64", "narrow dense d=48", "wider dense d=96"),
    Student("sharing64", "dense", "wider dense d=96"),
    Student("gated64", "all from two", "wider dense d=96"),
    Student("gated64", "narrow dense d=48", "wider dense d=96"),
]
PARAMS, STEPS, RATES, SHARES = 166_382, 200, (0.5, 1.0, 2.0), (None, 0.5, 0.9)  # of the compressed teacher


def taught(folder: Path, student: Student, seed: int) -> float:
    """The loss of a student."""
    lesson = f"train.teacher.run={trained(folder, student.teacher)}"
    settings = Runs(LADDERS[student.ladder], folder).settings(student.side, 1.0, seed, lesson)
    return train(folder, run_name(student.side, settings), settings)


def trained(folder: Path, teacher: str) -> Path:
    """The directory of a teacher, which is trained unless it is finished."""
    settings = Runs(TEACHERS[teacher], folder).settings(teacher, 1.0, SEEDS[0])
    name = run_name(teacher, settings)
    train(folder, name, settings)
    return folder / name


def students(folder: Path, pool: ThreadPoolExecutor) -> Iterator[dict[str, Any]]:
    list(pool.map(lambda teacher: trained(folder, teacher), TEACHERS))
    pairs = list(product(STUDENTS, SEEDS))
    by_pair = dict(zip(pairs, pool.map(lambda pair: taught(folder, *pair), pairs), strict=True))
    for student in STUDENTS:
        alone = Runs(LADDERS[student.ladder], folder)
        found = [alone.finished(student.side, 1.0, seed) for seed in SEEDS]
        yield {
            **student._asdict(),
            **of_seeds([by_pair[student, seed] for seed in SEEDS]),
            "without teacher": round(statistics.mean(run.loss for run in found if run is not None), 4),
        }


def recovered(folder: Path) -> Iterator[dict[str, Any]]:
    runs = Runs(LADDERS["sharing64"], folder)
    teacher, small = trained(folder, "dense"), folder / "compressed_teacher"
    if not small.exists():
        compress_run(teacher, None, small, PARAMS, "low_rank", TOKENS, None)
    for share in SHARES:
        lesson = [] if share is None else [f"train.teacher.run={teacher}", f"train.teacher.share={share}"]
        losses = {}
        for rate in RATES:
            more = f"run.start_from={small}", f"train.steps={STEPS}", *lesson
            settings = runs.settings("dense", rate, SEEDS[0], *more)
            losses[rate] = train(folder, run_name("recovered", settings), settings)
        yield {
            "share of the teacher": share or 0,
            **{f"rate {rate:g}": round(loss, 4) for rate, loss in losses.items()},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/distillation"), help="folder of the runs")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time")
    arguments = parser.parse_args()
    with ThreadPoolExecutor(arguments.workers) as pool:
        taught_students = list(students(arguments.runs, pool))
    report("distillation", taught_students, "Validation loss of models that learn from a larger one")
    recoveries = list(recovered(arguments.runs))
    report("recovered", recoveries, "Validation loss after compression and some steps with a teacher")


if __name__ == "__main__":
    main()
