"""The arguments of both commands for text that name sources and split: parsed, recorded and opened."""

import argparse
from typing import Any

from comera_dist.errors import DataError
from data_prep.command import add_common_arguments, add_held_out_arguments, pattern
from data_prep.files.split import SplitRule
from data_prep.text.near_copies import LEAST_SIMILARITY
from data_prep.text.separator import Separator
from data_prep.text.sources import TEXT_KEY, Documents, Reading

TOKENIZER_USAGE = "model of train_tokenizer.py, another sentencepiece model, or a tokenizer.json"


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
    parser.add_argument("--text-key", default=TEXT_KEY, help="key or column of the text in jsonl, parquet and hub data")
    add_held_out_arguments(parser, "valid", "the documents; a large corpus needs far less")
    add_common_arguments(parser, "document")


def source_parameters(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments that decide which documents are read and how they are split.

    A single source is recorded without a list, and no separator without its key, as in manifests of earlier versions:
    their corpora then count as finished.
    """
    separator = {"document_separator": args.document_separator} if args.document_separator else {}
    return {
        "source": _one_or_all(args.source or ["python-stdlib"]),
        "text_key": args.text_key,
        "seed": args.seed,
        "valid_fraction": None if args.valid_source else args.valid_fraction,
        "valid_source": _one_or_all(args.valid_source) if args.valid_source else None,
        **separator,
    }


def open_source(parameters: dict[str, Any]) -> tuple[Documents, SplitRule]:
    """Raises DataError if a source is unknown or names no file, or if a parameter has no effect on the sources."""
    separator = parameters.get("document_separator")
    reading = Reading(parameters["text_key"], Separator(separator) if separator else None)
    valid = parameters["valid_source"] and Documents(_all(parameters["valid_source"]), reading)
    rule = SplitRule(parameters["seed"], parameters["valid_fraction"] or 0.0, valid=valid)
    source = Documents(_all(parameters["source"]), reading)
    _check_used(reading, [source, valid] if valid else [source])
    return source, rule


def _check_used(reading: Reading, sources: list[Documents]) -> None:
    """Raises DataError if no source has the files that a setting of `reading` is for."""
    if reading.text_key != TEXT_KEY and not any(source.has_tables() for source in sources):
        raise DataError(
            "--text-key is for tables (.jsonl, .parquet, hub:), and the sources are files of text; remove it"
        )
    if reading.separator and not any(source.has_texts() for source in sources):
        raise DataError("--document-separator is for files of text, and the sources are tables; remove it")


def similarity(text: str) -> float:
    value = float(text)
    if not LEAST_SIMILARITY <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not in {LEAST_SIMILARITY}..1")
    return value


def _one_or_all(specs: list[str]) -> str | list[str]:
    return specs[0] if len(specs) == 1 else specs


def _all(specs: str | list[str]) -> list[str]:
    return [specs] if isinstance(specs, str) else specs
