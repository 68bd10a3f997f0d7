"""The answer to a bad step, as `train.on_bad_step` says: stop, skip the step, or go back and skip its data."""

import math
from typing import NamedTuple

from comera_dist.errors import TrainingError
from comera_dist.run.session import Session
from comera_dist.runtime.step import StepResult
from comera_dist.storage.run_directory import Record

MOST_IN_A_ROW = 8  # bad steps that are skipped; chosen: more is not a bad batch but a run that diverges
MOST_REWINDS = 3  # to one checkpoint; chosen: each one passes over more data, and the checkpoint itself may be bad


class Rewind(NamedTuple):
    """After the finished step `step` the run goes on with row number `row`. Step `bad_step` was bad before."""

    step: int
    row: int
    bad_step: int


def answer(session: Session, result: StepResult) -> bool:
    """Answers the bad step that `session` has just made; True if the run must be opened anew. Collective.

    Raises TrainingError where the run must not go on.
    """
    session.note_saved(is_needed=True)
    limit = session.watch.limit
    expected = "finite numbers" if math.isinf(limit) else f"a loss of at most {limit:g} and a finite norm"
    found = f"step {session.step} has loss {result.loss:g} and gradient norm {result.grad_norm:g}, expected {expected}"
    policy = session.config.train.on_bad_step
    if policy == "stop":
        raise TrainingError(f"{found}; {_way_out(session)}")
    if policy == "rewind":
        _rewind(session, found)
        return True
    if session.watch.bad_in_a_row >= MOST_IN_A_ROW:
        raise TrainingError(f"{found}, {MOST_IN_A_ROW} times in a row; {_way_out(session)}")
    session.processes.say(f"Skipped: {found}.")
    return False


def _rewind(session: Session, found: str) -> None:
    """Writes down that the run goes on from its newest checkpoint without the data since then."""
    step = session.saves.saved_step or 0
    rewinds = session.processes.from_first(session.directory.rewinds())
    if sum(one["step"] == step for one in rewinds) >= MOST_REWINDS:
        # The next start is to have other settings: it sees these data again, and may rewind as often.
        _note(session, [one for one in rewinds if one["step"] != step])
        raise TrainingError(f"{found}, after {MOST_REWINDS} rewinds to step {step}; {_way_out(session)}")
    session.processes.say(f"Rewound to step {step}, without the data up to here: {found}.")
    _note(session, [*rewinds, Rewind(step, session.rows, session.step)._asdict()])


def _note(session: Session, rewinds: list[Record]) -> None:
    if session.processes.is_first:
        session.directory.note(rewinds=rewinds)
    session.processes.barrier()


def _way_out(session: Session) -> str:
    advice = "lower optim.lr or lengthen schedule.warmup_steps"
    if session.saves.saved_step is None:
        return f"no checkpoint was saved before it: {advice}, and start again"
    return f"the checkpoint of step {session.saves.saved_step} is intact: {advice}, and resume"
