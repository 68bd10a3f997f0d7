"""The story of a run: find where we were, train, look, save, and say how it went."""

from comera_dist.config import Config
from comera_dist.console import summary_lines
from comera_dist.run_directory import RunDirectory, read_json
from comera_dist.runtime.checkpoint import newest_step
from comera_dist.runtime.guard import StopSignal, Watchdog, check_finite
from comera_dist.runtime.processes import Processes
from comera_dist.session import Session

STOPPED_STATUS = 75  # EX_TEMPFAIL: stopped by a signal with its state saved; the same command goes on


def train(config: Config, processes: Processes) -> int:
    """Runs or resumes the run that `config` names; returns the exit status of the process. Collective."""
    directory = RunDirectory(config.run_directory)
    if is_finished(directory, config):
        processes.say(f"{directory.path} is already finished; choose another run.name or remove it to train anew.")
        processes.say(summary_lines(read_json(directory.summary), directory.path))
        return 0

    session = Session(config, processes, directory)
    with StopSignal() as stop, Watchdog(config.train.timeout_seconds) as watchdog:
        while session.step < session.total_steps:
            result = session.train_step(stop.requested)
            check_finite(result, session.step)
            watchdog.alive()
            session.adapt_ranks()
            watchdog.alive()

            validation = session.validate() if session.is_due(config.eval.every) else None
            if validation or session.is_due(config.log.every) or session.step == 1:
                session.log(result, validation)
            if result.stop_requested or session.is_due(config.checkpoint.every):
                session.save()
            if result.stop_requested and session.step < session.total_steps:
                processes.say(f"Stopped by a signal at step {session.step}; start the same command again to go on.")
                session.close()
                return STOPPED_STATUS
            watchdog.alive()
        session.finish()
    session.close()
    return 0


def is_finished(directory: RunDirectory, config: Config) -> bool:
    """A summary counts for as many steps and tokens as it was written after: a run that is made longer goes on."""
    summary = read_json(directory.summary)
    if summary is None or newest_step(directory.checkpoints) < config.total_steps:
        return False
    return summary.get("tokens", 0) >= (config.train.tokens or 0)
