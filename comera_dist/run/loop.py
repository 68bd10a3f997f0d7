"""The course of a run: find where it was, train, save, validate and log."""

from enum import Enum, auto
from typing import Any

from safetensors import SafetensorError
from torch import nn
from torch.optim import Optimizer

from comera_dist.checkpoints.disk import passes, published
from comera_dist.checkpoints.prune import Kept
from comera_dist.checkpoints.verify import newest_step
from comera_dist.config.tree import Config
from comera_dist.errors import ConfigError, DiskError, RunDirectoryError, StopRequested
from comera_dist.report.lines import summary_lines
from comera_dist.report.records import RunEnded
from comera_dist.run.bad_steps import answer
from comera_dist.run.opening import open_mirror, open_session
from comera_dist.run.same_start import check_same_start
from comera_dist.run.session import Session
from comera_dist.run.train import CONFIGURED, Parts
from comera_dist.runtime.endings import TRY_AGAIN_STATUS, EndAtOnce, StopSignal
from comera_dist.runtime.processes import Processes
from comera_dist.storage.run_directory import RunDirectory

# Chosen: for the last copy to remote storage at the end of a run, and at a stop, where launchers often kill after 30 s.
MIRROR_SECONDS, HASTY_MIRROR_SECONDS = 600.0, 10.0


def run_or_resume(config: Config, processes: Processes, parts: Parts = CONFIGURED) -> int:
    """Trains or resumes the run of `config`; returns the exit status of the process. Collective.

    Raises ComeraError, on a single process if only that one meets the error.
    """
    _check_rewindable(config, parts)
    check_same_start(config, processes)
    directory = RunDirectory(config.run_directory)
    try:
        summary = processes.from_first(finished_summary(directory, config))
        if summary is not None:
            _say_finished(summary, config, processes)
            _complete_copy(summary, config, processes, directory)
            return 0
        with directory.held(processes):
            outcome = Outcome.REWOUND
            while outcome is Outcome.REWOUND:
                with EndAtOnce():
                    session = open_session(config, processes, directory, parts)
                outcome = carry_out(session)
        return 0 if outcome is Outcome.DONE else TRY_AGAIN_STATUS
    except (OSError, SafetensorError) as error:
        raise (DiskError if passes(error) else RunDirectoryError)(
            f"a file of {directory.path} or of its data cannot be read or written ({error}); mend that, e.g. make "
            f"room, and start the same command again to go on from the newest checkpoint"
        ) from error


def _say_finished(summary: dict[str, Any], config: Config, processes: Processes) -> None:
    path = config.run_directory
    copy = "" if config.checkpoint.mirror is None else f" and its copy in {config.checkpoint.mirror}"
    processes.say(f"{path} is already finished; choose another run.name or remove it{copy} to train anew.")
    processes.say(summary_lines(summary, path))


def _complete_copy(summary: dict[str, Any], config: Config, processes: Processes, directory: RunDirectory) -> None:
    """Copies what the mirror lacks: the start that finished the run may have been killed meanwhile. Collective."""
    section = config.checkpoint
    if section.mirror is None or not processes.from_first(bool(published(directory.checkpoints))):
        return
    kept = Kept(section.keep, section.keep_every, summary.get("best_step"))
    with directory.held(processes):
        mirror = open_mirror(config, directory, processes, kept)
        if mirror is not None:
            mirror.close(_mirror_seconds(config))
        processes.barrier()


def _mirror_seconds(config: Config, most: float = MIRROR_SECONDS) -> float:
    """The time for a last copy, in which the other processes wait."""
    return min(most, config.train.timeout_seconds / 2)


def _check_rewindable(config: Config, parts: Parts) -> None:
    """A rewind opens the parts of a run again; a module or an optimizer that was handed in has been changed by then."""
    if config.train.on_bad_step == "rewind":
        for name, part in (("model", parts.model), ("optimizer", parts.optimizer)):
            if isinstance(part, nn.Module | Optimizer):
                raise ConfigError(
                    f"train.on_bad_step=rewind with a finished {name}, expected a function that makes it anew; hand in "
                    f"a function, or set train.on_bad_step=skip"
                )


def finished_summary(directory: RunDirectory, config: Config) -> dict[str, Any] | None:
    """The summary of a finished run; None if `config` makes the run longer: by its length, or by train.stop_early.

    A finished run whose checkpoints were removed, e.g. to make room, stays finished.
    """
    summary = directory.read_summary()
    if summary is None:
        return None
    saved = published(directory.checkpoints)
    newest = newest_step(directory.checkpoints) if saved else summary.get("step", 0)
    if summary.get("ended_by") == config.train.stop_early.described:
        return summary if newest >= summary.get("step", 0) else None
    if newest < config.total_steps:
        return None
    return summary if summary["tokens"] >= (config.train.tokens or 0) else None


class Outcome(Enum):
    """How the steps of a session ended."""

    DONE = auto()
    STOPPED = auto()
    REWOUND = auto()  # the run is opened again, at an earlier step


def carry_out(session: Session) -> Outcome:
    """Makes the steps of an open session until its end, until a process is asked to stop, or until a bad step."""
    config = session.config
    with StopSignal() as stop:
        outcome = Outcome.STOPPED
        try:
            outcome = _to_the_end(session, stop)
        finally:
            session.observers(RunEnded(in_haste=outcome is Outcome.STOPPED))
        if outcome is Outcome.STOPPED:
            by = next(filter(None, session.processes.gather(stop.reason)))
            session.processes.say(f"Stopped by {by} at step {session.step}; start the same command again to go on.")
        session.close(_mirror_seconds(config, MIRROR_SECONDS if outcome is Outcome.DONE else HASTY_MIRROR_SECONDS))
    return outcome


def _to_the_end(session: Session, stop: StopSignal) -> Outcome:
    """Makes the steps and, of a run that is done, the summary."""
    try:
        outcome = _make_steps(session, stop)
        session.note_saved(is_needed=True)
        if outcome is Outcome.DONE:
            session.finish(stop)
        return outcome
    except StopRequested:  # the next start makes the validation anew
        session.save()
        session.note_saved(is_needed=True)
        return Outcome.STOPPED


def _make_steps(session: Session, stop: StopSignal) -> Outcome:
    """Trains until the run is done, a process asks to stop, or a bad step needs an earlier checkpoint."""
    if session.unlogged.result is not None:  # the earlier start was killed after it saved and before it logged
        _report(session, stop)
    elif session.owes_judgement:
        session.judge(stop)
        session.save_if_best()
    while not session.is_over:
        result = session.train_step(stop.requested)
        session.note_saved()
        if not result.is_applied and answer(session, result):
            return Outcome.STOPPED if result.requests.stop else Outcome.REWOUND
        session.adapt_ranks()
        # Saved first, because validating and logging may take long or fail.
        if any(result.requests) or session.save_is_due:
            session.save()
        if result.is_applied:
            _report(session, stop)
        if result.requests.stop and not session.is_over:
            return Outcome.STOPPED
    if session.step < session.total_steps:
        _stop_early(session)
    return Outcome.DONE


def _stop_early(session: Session) -> None:
    """Says why the run ends before its last step, and saves the step unless that is done."""
    patience = session.patience
    session.processes.say(
        f"Stopped early at step {session.step}: {patience.fruitless} validations in a row did not improve the loss "
        f"{patience.best:.4f}."
    )
    session.note_saved(is_needed=True)
    if session.saves.saved_step != session.step:
        session.save()


def _report(session: Session, stop: StopSignal) -> None:
    """Validates and logs if that is due, and saves if the step is to be kept as the best."""
    config = session.config
    validation = session.judge(stop) if session.is_due(config.validation_every) else None
    if validation or session.is_due(config.log.every) or session.step == 1:
        session.log(validation)
    if validation:
        session.save_if_best()
