"""The course of a run: find where it was, train, save, validate and log."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from comera_dist.checkpoints.verify import newest_step
from comera_dist.config.tree import Config
from comera_dist.errors import RunDirectoryError
from comera_dist.report.lines import summary_lines
from comera_dist.report.records import RunEnded
from comera_dist.run.opening import open_session
from comera_dist.run.session import Session
from comera_dist.run.train import CONFIGURED, Parts
from comera_dist.runtime.endings import TRY_AGAIN_STATUS, EndAtOnce, StopSignal
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.step import check_finite
from comera_dist.storage.run_directory import RunDirectory


def run_or_resume(config: Config, processes: Processes, parts: Parts = CONFIGURED) -> int:
    """Trains or resumes the run of `config`; returns the exit status of the process. Collective.

    Raises ComeraError, on a single process if only that one meets the error.
    """
    directory = RunDirectory(config.run_directory)
    summary = processes.from_first(finished_summary(directory, config))
    if summary is not None:
        processes.say(f"{directory.path} is already finished; choose another run.name or remove it to train anew.")
        processes.say(summary_lines(summary, directory.path))
        return 0
    try:
        with directory.held(processes):
            with EndAtOnce():
                session = open_session(config, processes, directory, parts)
            return carry_out(session)
    except (OSError, SafetensorError) as error:
        raise RunDirectoryError(
            f"a file of {directory.path} or of its data cannot be read or written ({error}); mend that, e.g. make "
            f"room, and start the same command again to go on from the newest checkpoint"
        ) from error


def finished_summary(
    directory: RunDirectory, config: Config, newest_step: Callable[[Path], int] = newest_step
) -> dict[str, Any] | None:
    """The summary of a finished run; None if `config` asks for more steps or tokens, which make the run longer.

    `newest_step` gives the step of the newest checkpoint in a folder.
    """
    summary = directory.read_summary()
    if summary is None or newest_step(directory.checkpoints) < config.total_steps:
        return None
    return summary if summary["tokens"] >= (config.train.tokens or 0) else None


def carry_out(session: Session) -> int:
    """Makes the steps of an open session until its end or until a process is asked to stop; the exit status."""
    with StopSignal() as stop:
        is_done = False
        try:
            is_done = _make_steps(session, stop)
            if is_done:
                session.finish()
        finally:
            session.observers(RunEnded(in_haste=not is_done))
        if not is_done:
            by = next(filter(None, session.processes.gather(stop.reason)))
            session.processes.say(f"Stopped by {by} at step {session.step}; start the same command again to go on.")
        session.close()
    return 0 if is_done else TRY_AGAIN_STATUS


def _make_steps(session: Session, stop: StopSignal) -> bool:
    """Trains to the end or until a process asks to stop; returns whether the end is reached."""
    config = session.config
    if session.result is not None:  # the earlier start was killed after it saved and before it logged
        _report(session)
    while session.step < session.total_steps:
        result = session.train_step(stop.requested)
        check_finite(result, session.step, session.saved_step)
        session.adapt_ranks()
        # Saved first, because validating and logging may take long or fail.
        if any(result.requests) or session.is_due(config.checkpoint.every):
            session.save()
        _report(session)
        if result.requests.stop and session.step < session.total_steps:
            return False
    return True


def _report(session: Session) -> None:
    """Validates and logs if that is due."""
    config = session.config
    validation = session.validate() if session.is_due(config.validation_every) else None
    if validation or session.is_due(config.log.every) or session.step == 1:
        session.log(validation)
