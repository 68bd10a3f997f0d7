"""Turns pairs of texts, with or without labels, into the token columns that encoders read.

python data_prep/prepare_pairs.py --source docstrings:python-stdlib --vocab-size 4096 \
    --tokenizer corpora/docstrings/tokenizer.model --output corpora/docstrings
"""

import argparse
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from comera_dist.data.columns import ColumnSet
from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.data.pairs import UNLABELLED, WORD_ENDS, WORD_STARTS
from comera_dist.data.special_tokens import SPECIALS
from comera_dist.data.tokenizer import Tokenizer
from data_prep.command import OneLineParser, add_common_arguments, add_held_out_arguments, positive, run
from data_prep.files.column_folder import ColumnFolder
from data_prep.files.preparation import Preparation
from data_prep.files.skips import Skips
from data_prep.files.split import TRAIN, SplitRule, split_items
from data_prep.pairs.sources import SKIPPED, Keys, Pairs
from data_prep.pairs.word_borders import word_borders
from data_prep.pairs.writer import pair_columns, write_pairs
from data_prep.text.arguments import TOKENIZER_USAGE
from data_prep.text.encoding import lossy_lines
from data_prep.text.tokenizer import MAX_BYTES, already_trained, check_record_is_ours, first_bytes, save, train_model
from data_prep.text.tokenizer_copy import tokenizer_copy, tokenizer_entry

_SHOWN = 5  # chosen: labels in a line of the report


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = OneLineParser(description="Prepare pairs of texts for an encoder.")
    add = parser.add_argument
    usage = ", ".join(kind.usage for kind in Pairs.kinds)
    add("--source", action="append", required=True, help=f"{usage}; may be given several times")
    add("--first-key", default="first", help="column of the first text; alternatives with commas")
    add("--second-key", default="second", help="column of the second text")
    add("--label-key", help="column of the label; without it pairs have none")
    add("--group-key", help="column of which equal values stay in one split, e.g. a premise of several pairs")
    add("--exclude-package", action="append", default=[], help="a package that --source docstrings: leaves out")
    add_held_out_arguments(parser, "valid", "the pairs of --source")
    add_held_out_arguments(parser, "test", "the held-out pairs", default=0.0)
    add("--tokenizer", type=Path, required=True, help=f"{TOKENIZER_USAGE}; or see --vocab-size")
    add("--vocab-size", type=positive, help="first train --tokenizer, with this many entries, on the pairs of train")
    add("--output", type=Path, required=True, help="folder of the prepared pairs")
    add_common_arguments(parser, "pair")
    return parser.parse_args(argv)


def prepare(argv: list[str] | None = None) -> None:
    """The whole command. Raises ComeraError for everything that the user can mend."""
    args = parse_arguments(argv)
    parameters = _parameters(args)
    source, rule = open_source(parameters)
    if args.vocab_size:
        _train_tokenizer(args, parameters, source, rule)
    tokenizer = open_tokenizer(args.tokenizer)
    vocab_size = tokenizer.vocab_size + SPECIALS
    parameters["tokenizer"] = tokenizer.fingerprint
    folder = ColumnFolder(args.output, "pairs", pair_columns(vocab_size), rule.splits, parameters)
    preparation = Preparation(folder, args, SKIPPED)
    if preparation.is_done():
        return
    with preparation.running() as bar:
        bar.begin("preparing")
        pairs = bar.counted(split_items(source, rule, preparation.skips))
        labels = write_pairs(pairs, tokenizer, rule, folder)
        facts = {"vocab_size": vocab_size, "tokenizer": tokenizer_entry(tokenizer)}
        preparation.publish({**facts, "eos_id": tokenizer.eos_id, "labels": labels}, _further_files(tokenizer))
    preparation.report([*lossy_lines(tokenizer), *_report(ColumnSet(args.output, "pairs"))])
    print(f"{args.output}: {bar.seconds:.1f} s")


def _parameters(args: argparse.Namespace) -> dict[str, Any]:
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
        # No key if pairs have no groups, as in the manifests of earlier versions.
        **({"group_key": args.group_key} if args.group_key else {}),
    }


def open_source(parameters: dict[str, Any]) -> tuple[Pairs, SplitRule]:
    """Raises DataError if a source is unknown, or names something that does not exist."""
    keys = Keys.named(*parameters["keys"], parameters.get("group_key"))
    held = {name: Pairs(specs, keys) for name in ("valid", "test") if (specs := parameters[f"{name}_sources"])}
    rule = SplitRule(parameters["seed"], parameters["valid_fraction"], parameters["test_fraction"], **held)
    return Pairs(parameters["sources"], keys, parameters["excluded_packages"]), rule


def _train_tokenizer(args: argparse.Namespace, parameters: dict[str, Any], source: Pairs, rule: SplitRule) -> None:
    """Makes --tokenizer from both texts of the pairs of train, unless an earlier run with these settings has."""
    parameters = {**parameters, "vocab_size": args.vocab_size, "max_bytes": MAX_BYTES}
    skips = Skips(args.strict, SKIPPED)
    check_record_is_ours(args.tokenizer)
    if not args.overwrite and already_trained(args.tokenizer, parameters, skips):
        return
    pairs = split_items(source, rule, skips)
    texts = (text for split, pair in pairs if split == TRAIN for text in (pair.first, pair.second))
    save(train_model(first_bytes(texts, MAX_BYTES), args.vocab_size), args.tokenizer, parameters, skips)


def _further_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    files = tokenizer_copy(tokenizer)
    for name, flags_V in zip((WORD_STARTS, WORD_ENDS), word_borders(tokenizer), strict=True):
        content = io.BytesIO()
        np.save(content, flags_V)
        files[name] = content.getvalue()
    return files


def _report(prepared: ColumnSet) -> Iterator[str]:
    names = prepared.manifest["labels"]
    for split, columns in prepared.splits.items():
        pairs, tokens = len(columns["labels"]), len(columns["tokens"])
        counts = zip(["unlabelled", *names], np.bincount(columns["labels"] + 1), strict=False)
        labels = "".join(f", {count:,} {label}" for label, count in counts if names and count)
        yield f"{split}: {pairs:,} pairs, {tokens:,} tokens, {tokens / pairs:.0f} a pair{labels}"
    learned, *held = (set(np.unique(columns["labels"]).tolist()) - {UNLABELLED} for columns in prepared.splits.values())
    if learned and (unknown := sorted(set().union(*held) - learned)):
        told = ", ".join(repr(names[label]) for label in unknown[:_SHOWN])
        yield f"train has no pair of {len(unknown)} labels that are held out, e.g. {told}: no model learns them"


def main() -> int:
    return run(prepare)


if __name__ == "__main__":
    sys.exit(main())
