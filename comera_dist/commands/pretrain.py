"""Trains the model of a configuration: deepspeed launch/pretrain.py --config FILE [section.key=value …]

Also runs under torchrun, srun and mpirun, and under plain `python` (one process). It resumes by itself from the run's
newest checkpoint. Exit status: 0 finished, 2 a mistake of the user, 75 stopped, hung, or without another process, which
was lost or never met, with its checkpoint intact (start it again).
"""

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from comera_dist.commands.arguments import read_arguments, refuse
from comera_dist.commands.imports import kept_imports
from comera_dist.config.tree import Config
from comera_dist.errors import ComeraError, MeetingError, PassingError
from comera_dist.runtime.endings import TRY_AGAIN_STATUS, EndAtOnce, Watchdog, end, keep_streams

if TYPE_CHECKING:  # it imports torch
    from comera_dist.runtime.processes import Processes

LOST_SECONDS = 3  # a launcher looks every second, and returns the status of the first process that it finds ended


def main(**parts: Any) -> None:
    """Ends this process. `parts` are arguments of `comera_dist.run.train.train`, for a script with its own parts."""
    config, _ = read_arguments(__doc__)
    keep_streams()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported
    with Watchdog(config.train.timeout_seconds):
        end(_pretrain(config, parts))


def _pretrain(config: Config, parts: dict[str, Any]) -> int:
    """The exit status. Heavy imports come after the configuration is known to be good."""
    processes = None
    try:
        with EndAtOnce(), kept_imports():
            from comera_dist.runtime.processes import lost_partner, start_processes

            processes = start_processes(config.train.timeout_seconds)
            from comera_dist.run.loop import run_or_resume
            from comera_dist.run.train import Parts
            from comera_dist.runtime.memory import lack_of_memory_named
        with lack_of_memory_named():
            status = run_or_resume(config, processes, Parts(**parts))
        processes.barrier()
        return status
    except ComeraError as error:
        # Processes that do not meet have reasons of their own.
        speaks = processes is None or isinstance(error, MeetingError) or processes.claims("the sentence of an error")
        status = refuse(error, speaks)
        return TRY_AGAIN_STATUS if isinstance(error, PassingError) else status
    except RuntimeError as error:
        reason = None if processes is None else lost_partner(error)
        if processes is None or reason is None:
            raise
        return _lost(processes, reason)


def _lost(processes: "Processes", reason: str) -> int:
    """The exit status after a collective failed; one of the processes that are left says why."""
    if processes.claims("the sentence of a lost process", without_first=processes.index == 1):
        print(
            f"A collective failed ({reason}): another process has ended or cannot be reached, so process "
            f"{processes.index} ends too; start the same command again to resume.",
            file=sys.stderr,
            flush=True,
        )
    time.sleep(LOST_SECONDS)
    return TRY_AGAIN_STATUS


if __name__ == "__main__":
    main()
