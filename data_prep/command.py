"""What both commands share: arguments that name source and split, and a sentence instead of a traceback."""

import argparse
import sys
from collections.abc import Callable

from comera_dist.errors import ComeraError
from data_prep.sources import Source, parse_source
from data_prep.split import SplitRule

DEFAULT_VALID_FRACTION = 0.05


class OneLineParser(argparse.ArgumentParser):
    """Ends with status 2 and one line on stderr, without the usage text."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--source",
        default="python-stdlib",
        help="python-stdlib (default), files:GLOB or hub:NAME[:CONFIG[:SPLIT]]",
    )
    parser.add_argument("--text-key", default="text", help="key or column of the text in jsonl, parquet and hub data")
    parser.add_argument("--strict", action="store_true", help="stop at the first broken or empty document")
    parser.add_argument("--seed", type=int, default=0, help="another seed holds out other documents")
    valid = parser.add_mutually_exclusive_group()
    valid.add_argument(
        "--valid-fraction",
        type=fraction,
        default=DEFAULT_VALID_FRACTION,
        help="share of documents held out for validation (default 0.05; a large corpus needs far less)",
    )
    valid.add_argument("--valid-source", help="take validation from this source instead; train gets none of its texts")
    parser.add_argument("--overwrite", action="store_true", help="replace what an earlier run with other settings left")


def source_parameters(args: argparse.Namespace) -> dict:
    """The arguments that decide which documents are read and how they are split."""
    return {
        "source": args.source,
        "text_key": args.text_key,
        "seed": args.seed,
        "valid_fraction": None if args.valid_source else args.valid_fraction,
        "valid_source": args.valid_source,
    }


def open_source(parameters: dict) -> tuple[Source, SplitRule]:
    """DataError when a source is unknown or names no file."""
    text_key, valid = parameters["text_key"], parameters["valid_source"]
    rule = SplitRule(parameters["valid_fraction"], parameters["seed"], parse_source(valid, text_key) if valid else None)
    return parse_source(parameters["source"], text_key), rule


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
    """Exit status of `main`: 2 with its sentence for an error of the user's, 130 after Ctrl-C."""
    try:
        main()
    except (ComeraError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; run the same command again to continue.", file=sys.stderr)
        return 130
    return 0
