"""How a command that goes on for long imports its packages."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_imports() -> Iterator[None]:
    """Within this block no garbage is collected; what exists at its end stays and is never looked at again.

    torch and DeepSpeed are 350,000 objects. The collector would walk them several times while they are imported, and
    again whenever an engine is rebuilt.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
