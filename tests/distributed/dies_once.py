"""launch/pretrain.py, whose process of the highest rank kills itself once the run's first checkpoint is published."""

import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def die_behind_a_checkpoint() -> None:
    """From now on a step of the last process is its death, if the run has a checkpoint and was not resumed."""
    from comera_dist.run.session import Session

    step, resume, resumed = Session.train_step, Session.resume, []

    def step_or_die(session, stop_requested):
        is_last = session.processes.index == session.processes.count - 1
        if is_last and not resumed and (session.config.run_directory / "checkpoints/LATEST").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return step(session, stop_requested)

    def resume_and_remember(session, checkpoint):
        resumed.append(checkpoint)
        resume(session, checkpoint)

    Session.train_step, Session.resume = step_or_die, resume_and_remember


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    from comera_dist.commands.pretrain import main

    die_behind_a_checkpoint()
    main()
