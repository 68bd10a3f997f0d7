"""Arguments that several commands share, and how a command ends with an error."""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from comera_dist.commands.parser import Parser
from comera_dist.commands.shipped import config_file
from comera_dist.config.fields import LARGEST_TOTAL
from comera_dist.config.reader import read_config
from comera_dist.config.secrets import redacted
from comera_dist.config.tree import Config
from comera_dist.errors import ComeraError
from comera_dist.runtime.launchers import find_place

MISTAKE_STATUS = 2  # argparse's status for mistakes on the command line
FIRST_SPEAKS_SECONDS = 2  # chosen: in this time the first process prints its sentence


def plain_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the command's docstring as it stands. It accepts the argument that launchers add."""
    parser = Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    # The environment says the same, so the value is not used.
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    return parser


def run_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with --run and --step, for commands that read a trained model."""
    parser = plain_parser(description)
    parser.add_argument("--run", type=Path, required=True, help="directory of the run")
    parser.add_argument("--step", type=int, help="step of the checkpoint (default: the newest)")
    return parser


def read_arguments(description: str | None, **options: dict[str, Any]) -> tuple[Config, argparse.Namespace]:
    """The checked configuration, and the values of `options` (flag: argparse settings).

    If the configuration is not possible, ends the process with status 2 and one line for each mistake.
    """
    parser = plain_parser(description)
    parser.add_argument(
        "--config", required=True, type=config_file, help="YAML file of the run, or a shipped one by name: quickstart"
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="overrides of single keys")
    for flag, settings in options.items():
        parser.add_argument("--" + flag.replace("_", "-"), **settings)
    arguments = parser.parse_intermixed_args()
    is_first = True
    try:
        is_first = find_place().index == 0
        config = read_config(arguments.config, arguments.overrides, _note if is_first else None)
    except ComeraError as error:
        sys.exit(refuse(error, is_first))
    return config, arguments


def _note(sentence: str) -> None:
    print(f"Note: {sentence}.", file=sys.stderr, flush=True)


def positive(text: str) -> int:
    """An argument of 1 or more, such as 1000 or 1e3.

    Raises argparse.ArgumentTypeError, or ValueError for text that is not a whole number.
    """
    return _at_least(1, text)


def not_negative(text: str) -> int:
    """An argument of 0 or more. Raises as `positive` does."""
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    try:
        number = Decimal(text)
        is_possible = least <= number <= LARGEST_TOTAL  # before int(), which would write out 1e999999999
    except InvalidOperation:  # text, or not a number
        raise ValueError(text) from None
    if not is_possible:
        raise argparse.ArgumentTypeError(
            f"{text[:40]} is not possible; give {least} or more, at most {LARGEST_TOTAL:.0e}"
        )
    if number % 1:
        raise ValueError(text)
    return int(number)


@contextmanager
def printing() -> Iterator[None]:
    """Around the output of a command: that its reader closes its end early, as `head` does, is no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # Python must not fail again when it flushes stdout at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def refuse(error: ComeraError, is_first: bool) -> int:
    """Prints the error, once for all processes, and returns the exit status."""
    if is_first:
        print(f"{type(error).__name__}: {redacted(str(error))}", file=sys.stderr, flush=True)
    else:
        time.sleep(FIRST_SPEAKS_SECONDS)  # a launcher ends all processes as soon as one of them ends
    return MISTAKE_STATUS
