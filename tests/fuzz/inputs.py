"""How inputs are tried: how many, for how long, in how much memory, and how many of each kind were tried.

A kind of input is a test. Its function returns if the input was accepted, and raises ComeraError if it was refused.
"""

import functools
import os
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from comera_dist.errors import ComeraError

TOTAL = int(os.environ.get("FUZZ_INPUTS", "0"))  # of all kinds, with fresh seeds; 0: few and always the same
FEW = 10  # of a kind in `make test`; chosen: the folder then takes half a minute of a core
SECONDS = 10  # of a core's time for one input; chosen: the slowest takes about 2
MEMORY = 6 << 30  # bytes of addresses beyond those in use; chosen: torch's threads and maps alone take 2 GiB
LONGEST = 20_000  # characters of an error; chosen: a hundred mistakes in a configuration have fewer

tried: Counter[tuple[str, str]] = Counter()  # inputs by kind and by end: "accepted" or "refused"


class NoAnswer(Exception):
    """An input was neither accepted nor refused in SECONDS."""


def fuzzed(kind: str, share: int, /, **strategies: SearchStrategy) -> Callable:
    """Makes a function a test of `kind`. Its keyword arguments are drawn from `strategies`; others are fixtures.

    `share`: inputs of this kind among 10,000 of all kinds.
    """

    def decorated(function: Callable) -> Callable:
        @functools.wraps(function)
        def counted(*args: object, **kwargs: object) -> None:
            try:
                with _limited():
                    function(*args, **kwargs)
            except ComeraError as error:
                _check_sentence(str(error))
                tried[kind, "refused"] += 1
            else:
                tried[kind, "accepted"] += 1

        return _profile(share)(given(**strategies)(counted))

    return decorated


def _profile(share: int) -> settings:
    return settings(
        max_examples=max(1, TOTAL * share // 10_000) if TOTAL else FEW,
        derandomize=not TOTAL,
        database=None,
        phases=(Phase.generate, Phase.shrink),  # explaining a failure takes longer than an input may take
        deadline=None,  # `_limited` ends an input that takes too long; hypothesis would only report it
        print_blob=bool(TOTAL),
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def _limited() -> Iterator[None]:
    """Raises NoAnswer after SECONDS, and MemoryError beyond MEMORY. Waiting for nothing is the test's own timeout."""
    before = signal.signal(signal.SIGPROF, _raise_no_answer)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_addresses() + MEMORY, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def _raise_no_answer(*_: object) -> None:
    raise NoAnswer(f"no answer after {SECONDS} s of work")


def _addresses() -> int:
    """Bytes of addresses that this process has in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _check_sentence(text: str) -> None:
    assert text.strip(), "an error without a sentence"
    assert len(text) < LONGEST, f"an error of {len(text)} characters"
    assert not text.endswith("."), text


def exit_status(command: Callable[[], int | None], fault: type[ComeraError] = ComeraError) -> None:
    """Calls a command. Raises `fault` for status 2; any other status than 0 is a failure of the test."""
    try:
        status = command()
    except SystemExit as end:
        status = end.code
    if status == 2:
        raise fault("refused with status 2")
    assert status in (0, None), f"status {status!r}"


@contextmanager
def replaced(changes: dict[Path, bytes]) -> Iterator[None]:
    """While entered, these files have other contents."""
    before = {path: path.read_bytes() for path in changes}
    try:
        for path, content in changes.items():
            path.write_bytes(content)
        yield
    finally:
        for path, content in before.items():
            path.write_bytes(content)
