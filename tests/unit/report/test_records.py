"""How observers are called, and what becomes of their errors."""

import pytest

from comera_dist.report.records import Observers, RunEnded, StepLogged

STEP, END = StepLogged({"step": 1}, 1.0, 0.0), RunEnded(in_haste=False)


def breaks(record):
    raise ConnectionResetError(104, "Connection reset by peer")


def test_every_observer_gets_every_record_in_order():
    seen = []
    observers = Observers([lambda record: seen.append(("own", record))], [lambda record: seen.append(("user", record))])
    for record in (STEP, END):
        observers(record)
    assert seen == [(who, record) for record in (STEP, END) for who in ("own", "user")]


def test_an_observer_of_the_caller_that_breaks_is_said_once_and_called_no_more(capsys):
    seen = []
    observers = Observers(others=[breaks, seen.append])
    for record in (STEP, END):
        observers(record)
    assert seen == [STEP, END]
    said = capsys.readouterr().out
    assert said == (
        "The observer breaks is called no more: ConnectionResetError: [Errno 104] Connection reset by peer; the run "
        "goes on without it.\n"
    )


def test_an_observer_of_every_run_that_breaks_ends_it():
    with pytest.raises(ConnectionResetError):
        Observers([breaks])(STEP)
