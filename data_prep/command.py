"""What both commands share: arguments that name source and split, and a sentence instead of a traceback."""

import argparse
import errno
import io
import re
import sys
from collections.abc import Callable

from comera_dist.errors import ComeraError
from data_prep.sources import Sources, parse_sources
from data_prep.split import SplitRule

DEFAULT_VALID_FRACTION = 0.05
_REMEDIES = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.EFBIG: "raise the limit of the size of files there",
    errno.EACCES: "get the permission",
    errno.EPERM: "get the permission",
    errno.EROFS: "name another place",
    errno.EEXIST: "move it away, or name another place",
    errno.ENOTDIR: "move it away, or name another place",
    errno.EISDIR: "move it away, or name another place",
}


class OneLineParser(argparse.ArgumentParser):
    """Ends with status 2 and one line on stderr, without the usage text."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--source",
        action="append",
        help="python-stdlib (default), files:GLOB or hub:NAME[:CONFIG[:SPLIT]]; may be given several times",
    )
    parser.add_argument(
        "--document-separator",
        type=pattern,
        metavar="REGEX",
        help="lines of text files that end a document and belong to none, e.g. '={3,}', or ' *' for blank lines "
        "(default: <|endoftext|> in .txt files)",
    )
    parser.add_argument("--text-key", default="text", help="key or column of the text in jsonl, parquet and hub data")
    parser.add_argument("--strict", action="store_true", help="stop at the first broken or empty document")
    parser.add_argument("--seed", type=seed, default=0, help="another seed holds out other documents")
    valid = parser.add_mutually_exclusive_group()
    valid.add_argument(
        "--valid-fraction",
        type=fraction,
        default=DEFAULT_VALID_FRACTION,
        help="share of documents held out for validation (default 0.05; a large corpus needs far less)",
    )
    valid.add_argument(
        "--valid-source",
        action="append",
        help="take validation from this source instead, or from several; train gets none of its texts",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what an earlier run with other settings left")


def source_parameters(args: argparse.Namespace) -> dict:
    """The arguments that decide which documents are read and how they are split.

    One source is recorded by itself and no separator not at all, as before there could be several and one: what was
    prepared then counts as finished.
    """
    separator = {"document_separator": args.document_separator} if args.document_separator else {}
    return {
        "source": _one_or_all(args.source or ["python-stdlib"]),
        "text_key": args.text_key,
        "seed": args.seed,
        "valid_fraction": None if args.valid_source else args.valid_fraction,
        "valid_source": _one_or_all(args.valid_source or [None]),
        **separator,
    }


def open_source(parameters: dict) -> tuple[Sources, SplitRule]:
    """DataError when a source is unknown or names no file."""
    separator = parameters.get("document_separator")
    settings = parameters["text_key"], separator and re.compile(separator)
    valid = parameters["valid_source"] and parse_sources(_all(parameters["valid_source"]), *settings)
    rule = SplitRule(parameters["valid_fraction"], parameters["seed"], valid)
    return parse_sources(_all(parameters["source"]), *settings), rule


def _one_or_all(specs: list) -> str | list[str] | None:
    return specs[0] if len(specs) == 1 else specs


def _all(specs: str | list[str]) -> list[str]:
    return [specs] if isinstance(specs, str) else specs


def pattern(text: str) -> str:
    """A regular expression."""
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error
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
    """Exit status of `main`: 2 with its sentence for an error of the user's, 130 after Ctrl-C."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    try:
        main()
    except ComeraError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(system_sentence(error))
    except MemoryError:
        return _refuse("There is not enough memory; divide the largest files, or use a machine with more.")
    except KeyboardInterrupt:
        print("Interrupted; run the same command again to continue.", file=sys.stderr)
        return 130
    return 0


def system_sentence(error: OSError) -> str:
    """What the system refused, for which file, and what to do."""
    what = error.strerror or str(error) or type(error).__name__
    named = f"{error.filename}: {what}" if error.filename else what
    remedy = _REMEDIES.get(error.errno, "mend that")
    return f"{named}; {remedy}, then run the same command again to continue."


def _refuse(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 2
