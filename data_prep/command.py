"""Shared by all commands: types of arguments, and one sentence instead of a traceback."""

import argparse
import errno
import io
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from comera_dist.commands.parser import Parser
from comera_dist.config.secrets import redacted
from comera_dist.errors import ComeraError

_MAKE_ROOM, _MOVE_AWAY = "make room there", "move it away, or name another place"
_REMEDIES = {
    errno.ENOSPC: _MAKE_ROOM,
    errno.EDQUOT: _MAKE_ROOM,
    errno.EFBIG: "raise the limit of the size of files there",
    errno.EACCES: "get the permission",
    errno.EPERM: "get the permission",
    errno.EROFS: "name another place",
    errno.EEXIST: _MOVE_AWAY,
    errno.ENOTDIR: _MOVE_AWAY,
    errno.EISDIR: _MOVE_AWAY,
}


class OneLineParser(Parser):
    """Ends with status 2 and one line on stderr, without the usage text."""

    def end_with(self, sentence: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {sentence} (see --help)\n")


class StoreOnce(argparse.Action):
    """Refuses the option again: the last value would count, and data that the others name be left out."""

    _filled: Any = None  # the namespace that has a value of the command line

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        if self._filled is namespace:
            raise argparse.ArgumentError(self, "it is given twice, and only the last one would count; give it once")
        self._filled = namespace
        setattr(namespace, self.dest, values)


def add_common_arguments(parser: argparse.ArgumentParser, part: str) -> None:
    """Adds --seed, --strict and --overwrite for sources whose parts are called `part`."""
    parser.add_argument("--seed", type=seed, default=0, help=f"another seed holds out other {part}s")
    parser.add_argument("--strict", action="store_true", help=f"stop at the first {part} that cannot be used")
    parser.add_argument("--overwrite", action="store_true", help="replace what an earlier run with other settings left")


def add_held_out_arguments(
    parser: argparse.ArgumentParser,
    split: str,
    whole: str,
    default: float = 0.05,
    several: bool = True,
    kept_out: str = "no copy of it",
) -> None:
    """Adds --SPLIT-source, which may be given several times if `several`, and --SPLIT-fraction of `whole`.

    `kept_out` is what train does not get.
    """
    source: dict[str, Any] = {"action": "append", "default": []} if several else {"action": StoreOnce}
    either = parser.add_mutually_exclusive_group()
    either.add_argument(f"--{split}-source", **source, help=f"take {split} from this source; train gets {kept_out}")
    either.add_argument(
        f"--{split}-fraction", type=fraction, default=default, help=f"share of {whole} (default {default:g})"
    )


def pattern(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it is empty; ' *' matches blank lines")
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from error
    return text


def fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not in 0..1 (1 excluded)")
    return value


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return value


def seed(text: str) -> int:
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text} does not fit 64 bits")
    return value


def run(main: Callable[[], None]) -> int:
    """Calls `main` and returns the exit status: 2, with its sentence, for an error of the user, 130 after Ctrl-C."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    try:
        main()
    except ComeraError as error:
        sentence = str(error)
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        named = f"{error.filename}: {reason}" if error.filename else reason
        remedy = _REMEDIES.get(error.errno or 0, "mend that")
        sentence = f"{named}; {remedy}, then run the same command again to continue"
    except MemoryError:
        sentence = "there is not enough memory; divide the largest files, or use a machine with more"
    except KeyboardInterrupt:
        print("Interrupted; run the same command again to continue.", file=sys.stderr)
        return 130
    else:
        return 0
    print(redacted(sentence), file=sys.stderr)
    return 2
