"""Reading ahead changes nothing but when things are read."""

import threading

import pytest

from comera_dist.data.prefetch import Prefetch


def test_batches_are_those_of_reading_in_turn_also_after_a_jump():
    prefetch = Prefetch(lambda rows: [rows, rows + 1], rows_a_step=4)
    for rows in (0, 4, 8, 8, 100, 104, 0):
        assert prefetch.step(rows) == [rows, rows + 1]
    prefetch.close()


def test_the_next_step_is_read_meanwhile():
    read = {rows: threading.Event() for rows in (0, 4, 8)}
    prefetch = Prefetch(lambda rows: read[rows].set(), rows_a_step=4)
    prefetch.step(0)
    assert read[4].wait(timeout=10)
    assert not read[8].is_set()
    prefetch.close()


def test_an_error_comes_at_its_step():
    def read(rows):
        if rows == 4:
            raise ValueError("torn")
        return rows

    prefetch = Prefetch(read, rows_a_step=4)
    assert prefetch.step(0) == 0
    with pytest.raises(ValueError, match="torn"):
        prefetch.step(4)
    prefetch.close()
