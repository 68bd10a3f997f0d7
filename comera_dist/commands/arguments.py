"""The command line that all commands share: --config FILE and section.key=value overrides."""

import argparse
import sys
import time
from typing import Any

from comera_dist.commands.shipped import config_file
from comera_dist.config.reader import read_config
from comera_dist.config.tree import Config
from comera_dist.errors import ComeraError
from comera_dist.runtime.launchers import find_place

MISTAKE_STATUS = 2


def read_arguments(description: str | None, **options: dict[str, Any]) -> tuple[Config, argparse.Namespace]:
    """The checked configuration, and the values of `options` (flag: argparse settings).

    Ends the process with status 2 and one line a mistake where the configuration is not possible.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--config", required=True, type=config_file, help="YAML file of the run, or a shipped one by name: quickstart"
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="overrides of single keys")
    # Launchers add it; the environment says the same.
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
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
    """An argument that counts something; argparse says what is wrong with it."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not possible; give 1 or more")
    return int(text)


def refuse(error: ComeraError, is_first: bool) -> int:
    """Says what is wrong, once for all processes, and returns the exit status."""
    if is_first:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    else:
        time.sleep(2)  # a launcher ends all processes when one does: let the first one speak
    return MISTAKE_STATUS
