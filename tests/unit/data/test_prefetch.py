"""Reading ahead changes nothing but when things are read."""

import threading

import pytest

from comera_dist.data.prefetch import Prefetch


def test_batches_are_those_of_reading_in_turn_also_after_a_jump_and_at_another_size():
    prefetch = Prefetch(lambda *arguments: [*arguments])
    for step in ((0, 4, 4), (4, 4, 4), (8, 4, 4), (8, 4, 4), (100, 4, 6), (104, 6, 6), (110, 8, 8), (0, 4, 4)):
        assert prefetch.step(*step) == [*step[:2]]
    prefetch.close()


def test_the_next_step_is_read_meanwhile():
    read = {rows: threading.Event() for rows in ((0, 4), (4, 6), (10, 6))}
    prefetch = Prefetch(lambda *arguments: read[arguments].set())
    prefetch.step(0, 4, 6)
    assert read[4, 6].wait(timeout=10)
    assert not read[10, 6].is_set()
    prefetch.close()


def test_an_error_comes_at_its_step():
    def read(rows_done, rows):
        if rows_done == 4:
            raise ValueError("torn")
        return rows_done

    prefetch = Prefetch(read)
    assert prefetch.step(0, 4, 4) == 0
    with pytest.raises(ValueError, match="torn"):
        prefetch.step(4, 4, 4)
    prefetch.close()
