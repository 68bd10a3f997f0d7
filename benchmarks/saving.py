"""How long a step waits for a checkpoint: torchrun --nproc_per_node 2 benchmarks/saving.py [--quick]

A dense decoder with 25 million stored parameters saves weights and moments, 12 bytes each. Saves that are written while
the run goes on and saves that the run waits for take turns. `stall` is the time of the call that begins a save, and of
the waiting. `steps while writing` compares the steps until the checkpoint is published with steps without a save. The
corpus is the quickstart's. Plain `python` measures one process.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

if not __package__:  # started as a command: packages are found from the repository's root
    sys.path[0] = str(Path(__file__).parents[1])

from benchmarks.report import show_or_report
from comera_dist.config.reader import read_config
from comera_dist.run.opening import open_session
from comera_dist.run.session import Session
from comera_dist.runtime.processes import leave, start_processes
from comera_dist.storage.run_directory import RunDirectory

MODEL = ("model.d_model=512", "model.d_ff=1408", "model.layers=8", "model.tie_embeddings=true", "model.format=dense")
QUICK = ("model.d_model=16", "model.d_ff=24", "model.layers=1", "model.tie_embeddings=true", "model.format=dense")
STEP = ("train.batch_tokens=256", "data.seq_len=128", "train.steps=1000", "train.zero_stage=1", "wandb.mode=disabled")
USUAL_SECONDS = 60 * read_config(None, ["train.steps=1"]).checkpoint.every_minutes  # between two saves


def seconds_of_step(session: Session) -> float:
    started = time.perf_counter()
    session.train_step(False)
    return time.perf_counter() - started


def save(session: Session, waits: bool) -> dict[str, float]:
    """Seconds of the stall, seconds until publication, and the median step until then (NaN: there was none)."""
    started, steps = time.perf_counter(), []
    session.save()
    session.note_saved(is_needed=waits)
    stall = time.perf_counter() - started
    while session.saves.saved_step is None or session.saves.saved_step < session.step - len(steps):
        steps.append(seconds_of_step(session))
        session.note_saved()
    return {
        "stall": stall,
        "published": time.perf_counter() - started,
        "step": statistics.median(steps) if steps else float("nan"),
    }


def measured(session: Session, turns: int) -> list[dict]:
    """A row for each kind of save."""
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    plain = [seconds_of_step(session) for _ in range(3)][1:]
    for _ in range(turns):
        for waits, saves in found.items():
            plain += [seconds_of_step(session) for _ in range(3)]
            saves.append(save(session, waits))
    usual = statistics.median(plain)
    return [
        {
            "save": "waits for the disk" if waits else "written while the run goes on",
            "processes": session.processes.count,
            "parameters": session.model.estimate.params,
            "stall ms": round(1000 * statistics.median(one["stall"] for one in saves), 1),
            "of the time between saves": f"{statistics.median(one['stall'] for one in saves) / USUAL_SECONDS:.5%}",
            "published after ms": round(1000 * statistics.median(one["published"] for one in saves)),
            "steps while writing": round(statistics.median(one["step"] for one in saves) / usual, 2),
            "step ms": round(1000 * usual),
        }
        for waits, saves in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny model, and nothing is written to the results")
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    processes = start_processes()
    with tempfile.TemporaryDirectory(dir=".") as folder:
        place = [f"run.directory={processes.from_first(folder)}", "checkpoint.keep=1"]
        config = read_config(None, [*(QUICK if arguments.quick else MODEL), *STEP, *place])
        directory = RunDirectory(config.run_directory)
        with directory.held(processes):
            session = open_session(config, processes, directory)
            rows = measured(session, 1 if arguments.quick else 5)
            session.close()
        processes.barrier()
    if processes.is_first:
        title = "Saving a checkpoint of weights and moments"
        show_or_report(f"saving_{processes.count}", rows, title, arguments.quick)
    leave(processes, 0)


if __name__ == "__main__":
    main()
