"""Turns pairs of texts, with or without labels, into the token columns that encoders read.

python data_prep/prepare_pairs.py --source docstrings:python-stdlib --vocab-size 4096 \
    --tokenizer corpora/docstrings/tokenizer.model --output corpora/docstrings
"""

import argparse
import io
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from comera_dist.data.columns import ColumnSet
from comera_dist.data.pairs import WORD_ENDS, WORD_STARTS
from comera_dist.data.special_tokens import SPECIALS
from comera_dist.data.tokenizer import Tokenizer
from comera_dist.errors import DataError
from data_prep.column_folder import ColumnFolder
from data_prep.command import DEFAULT_VALID_FRACTION, OneLineParser, fraction, positive, run, seed
from data_prep.pair_sources import PAIR_KINDS, Keys, PairSource, parse_pair_source
from data_prep.pair_split import PairSplitRule, split_pairs
from data_prep.pair_writer import pair_columns, write_pairs
from data_prep.skips import Skips, told_on_failure
from data_prep.split import TRAIN
from data_prep.train_tokenizer import DEFAULT_MAX_BYTES, already_trained, first_bytes, save, train_model
from data_prep.word_borders import word_borders


def prepare(args: argparse.Namespace) -> None:
    """The whole command; ComeraError with a sentence for whatever the user can mend."""
    started, parameters = time.perf_counter(), pair_parameters(args)
    sources, rule = open_sources(parameters)
    if args.vocab_size:
        _train_tokenizer(args, parameters, sources, rule)
    tokenizer = Tokenizer(args.tokenizer)
    vocab_size = tokenizer.vocab_size + SPECIALS
    parameters["tokenizer"] = tokenizer.fingerprint
    folder = ColumnFolder(args.output, "pairs", pair_columns(vocab_size), rule.splits, parameters)
    if not args.overwrite and folder.is_finished():
        print(f"{args.output} is already prepared with these settings; nothing to do.")
        return
    skips = Skips(args.strict, PAIR_KINDS)
    with told_on_failure(skips), folder.writing():
        pairs = track(split_pairs(sources, rule, skips), "preparing", console=Console(stderr=True), transient=True)
        labels = write_pairs(pairs, tokenizer, rule, folder)
        entry = {"file": "tokenizer.model", "sha256": tokenizer.fingerprint}
        facts = {"vocab_size": vocab_size, "labels": labels, "tokenizer": entry, "skipped": skips.counts}
        folder.publish(facts, _further_files(tokenizer))
    for line in [*skips.report(), *_report(ColumnSet(args.output, "pairs"))]:
        print(line)
    print(f"{args.output}: {time.perf_counter() - started:.1f} s")


def pair_parameters(args: argparse.Namespace) -> dict:
    """The arguments that decide which pairs are read and how they are split."""
    return {
        "sources": args.source,
        "valid_sources": args.valid_source,
        "test_sources": args.test_source,
        "valid_fraction": 0.0 if args.valid_source else args.valid_fraction,
        "test_fraction": 0.0 if args.test_source else args.test_fraction,
        "keys": [args.first_key, args.second_key, args.label_key],
        "excluded_packages": args.exclude_package,
        "seed": args.seed,
        # Absent where pairs have no groups, as in the manifests of earlier versions.
        **({"group_key": args.group_key} if args.group_key else {}),
    }


def open_sources(parameters: dict) -> tuple[tuple[PairSource, ...], PairSplitRule]:
    """DataError when a source is unknown, or names what is not there."""
    columns = *parameters["keys"], parameters.get("group_key")
    keys = Keys(*map(_alternatives, columns))
    excluded = tuple(parameters["excluded_packages"])
    valid, test = (
        tuple(parse_pair_source(spec, keys) for spec in parameters[name]) for name in ("valid_sources", "test_sources")
    )
    fractions = parameters["valid_fraction"], parameters["test_fraction"]
    rule = PairSplitRule(*fractions, parameters["seed"], valid, test)
    return tuple(parse_pair_source(spec, keys, excluded) for spec in parameters["sources"]), rule


def _alternatives(names: str | None) -> tuple[str, ...]:
    """Of a comma list of columns. DataError where it is given and names none."""
    found = tuple(name.strip() for name in (names or "").split(",") if name.strip())
    if names is not None and not found:
        raise DataError(f"{names!r} names no column; remove the option, or name the columns that a row may have")
    return found


def _train_tokenizer(
    args: argparse.Namespace, parameters: dict, sources: tuple[PairSource, ...], rule: PairSplitRule
) -> None:
    """Makes --tokenizer from both texts of the pairs of train, unless an earlier run with these settings has."""
    parameters = {**parameters, "vocab_size": args.vocab_size, "max_bytes": DEFAULT_MAX_BYTES}
    if not args.overwrite and already_trained(args.tokenizer, parameters):
        return
    pairs = split_pairs(sources, rule, Skips(args.strict, PAIR_KINDS))
    texts = (text for split, pair in pairs if split == TRAIN for text in (pair.first, pair.second))
    save(train_model(first_bytes(texts, DEFAULT_MAX_BYTES), args.vocab_size), args.tokenizer, parameters)


def _further_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    files = {"tokenizer.model": tokenizer.path.read_bytes()}
    for name, flags_V in zip((WORD_STARTS, WORD_ENDS), word_borders(tokenizer.path), strict=True):
        content = io.BytesIO()
        np.save(content, flags_V)
        files[name] = content.getvalue()
    return files


def _report(prepared: ColumnSet) -> list[str]:
    names, lines = prepared.manifest["labels"], []
    for name, columns in prepared.splits.items():
        pairs, tokens = len(columns["labels"]), len(columns["tokens"])
        counts = zip(["unlabelled", *names], np.bincount(columns["labels"] + 1), strict=False)
        labels = "".join(f", {count:,} {label}" for label, count in counts if names and count)
        lines.append(f"{name}: {pairs:,} pairs, {tokens:,} tokens, {tokens / pairs:.0f} a pair{labels}")
    return lines


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = OneLineParser(description="Prepare pairs of texts for an encoder.")
    add = parser.add_argument
    add(
        "--source",
        action="append",
        required=True,
        help="files:GLOB of .tsv, .csv or .jsonl, hub:NAME[:CONFIG[:SPLIT]], docstrings:PACKAGE[,PACKAGE...], "
        "docstrings:installed or docstrings:python-stdlib; may be given several times",
    )
    add("--first-key", default="first", help="column of the first text; alternatives with commas")
    add("--second-key", default="second", help="column of the second text")
    add("--label-key", help="column of the label; without it pairs have none")
    add("--group-key", help="column of which equal values stay in one split, e.g. a premise of several pairs")
    add("--exclude-package", action="append", default=[], help="a package that --source docstrings: leaves out")
    valid, test = parser.add_mutually_exclusive_group(), parser.add_mutually_exclusive_group()
    valid.add_argument("--valid-source", action="append", default=[], help="validation; train gets none of its pairs")
    valid.add_argument(
        "--valid-fraction",
        type=fraction,
        default=DEFAULT_VALID_FRACTION,
        help="share of the pairs of --source that is held out for validation (default 0.05)",
    )
    test.add_argument("--test-source", action="append", default=[], help="test; train and valid get none of its pairs")
    test.add_argument("--test-fraction", type=fraction, default=0.0, help="share of the held-out pairs that is test")
    add("--seed", type=seed, default=0, help="another seed holds out other pairs")
    add("--tokenizer", type=Path, required=True, help="model of train_tokenizer.py, or see --vocab-size")
    add("--vocab-size", type=positive, help="first train --tokenizer, with so many entries, on the pairs of train")
    add("--output", type=Path, required=True, help="folder of the prepared pairs")
    add("--strict", action="store_true", help="stop at the first pair that cannot be used")
    add("--overwrite", action="store_true", help="replace what an earlier run with other settings left")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    prepare(parse_arguments(argv))


if __name__ == "__main__":
    sys.exit(run(main))
