"""Imports that stay are left out of garbage collection, and later garbage is not."""

import gc
import weakref

from comera_dist.commands.imports import kept_imports


class Cycle:
    def __init__(self):
        self.itself = self


def test_what_exists_at_the_end_stays_and_later_garbage_is_collected():
    try:
        with kept_imports():
            assert not gc.isenabled()
            kept = weakref.ref(Cycle())
        assert gc.isenabled()
        later = weakref.ref(Cycle())
        gc.collect()
        assert kept() is not None
        assert later() is None
    finally:
        gc.unfreeze()
