"""Turns sources of text into a corpus of token shards. A killed run resumes where it stopped.

python data_prep/tokenize_corpus.py --source python-stdlib --tokenizer corpora/python-stdlib/tokenizer.model \
    --output corpora/python-stdlib
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.data.shards import Corpus
from data_prep.command import OneLineParser, positive, run
from data_prep.files.progress import Bar
from data_prep.files.skips import Skips, told_on_failure
from data_prep.files.split import split_items
from data_prep.text.arguments import TOKENIZER_USAGE, add_source_arguments, open_source, similarity, source_parameters
from data_prep.text.encoding import encode_in_order, lossy_lines
from data_prep.text.near_copies import NEAR_COPY, without_near_copies
from data_prep.text.shard_folder import ShardFolder
from data_prep.text.shards import TextShard, Unit, plan_shards, units_of
from data_prep.text.sources import COPIES, SKIPPED


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = OneLineParser(description="Tokenize a source into a corpus that training reads.")
    add_source_arguments(parser)
    add = parser.add_argument
    add("--tokenizer", type=Path, required=True, help=TOKENIZER_USAGE)
    add("--output", type=Path, required=True, help="folder of the corpus")
    add("--shard-mb", type=positive, default=32, help="text of a shard; a killed run loses at most one")
    add(
        "--near-duplicates",
        type=similarity,
        metavar="SIMILARITY",
        help="leave out documents that are so similar to an earlier one, e.g. 0.8 of their runs of five words "
        "(default: keep all)",
    )
    add("--workers", type=positive, default=len(os.sched_getaffinity(0)), help="processes that tokenize")
    return parser.parse_args(argv)


def tokenize(argv: list[str] | None = None) -> None:
    """The whole command. Raises ComeraError for everything that the user can mend."""
    args = parse_arguments(argv)
    tokenizer = open_tokenizer(args.tokenizer)
    parameters = _parameters(args)
    splits = ["train"] if parameters["valid_fraction"] == 0 else ["train", "valid"]
    folder = ShardFolder(args.output, tokenizer, parameters, splits)
    if not args.overwrite and folder.is_finished():
        print(f"{args.output} is already tokenized with these settings; nothing to do.")
        return
    source, rule = open_source(parameters)
    kinds = (*SKIPPED, NEAR_COPY) if args.near_duplicates else SKIPPED
    skips, kept, encoded_bytes = Skips(args.strict, kinds), list[int](), 0
    with folder.writing(args.overwrite), told_on_failure(skips):
        with Bar(counts_bytes=True) as bar:
            bar.begin("tokenizing", source.size_hint())
            documents = split_items(source, rule, skips, COPIES)
            if args.near_duplicates:
                documents = without_near_copies(documents, args.near_duplicates, skips)
            shards = plan_shards(documents, args.shard_mb * 1_000_000, splits)
            units = _units_to_encode(shards, folder, kept, bar)
            for unit, tokens in encode_in_order(units, args.tokenizer, args.workers):
                folder.append(unit, tokens)
                encoded_bytes += unit.bytes
                bar.advance(unit.bytes)
        corpus = folder.finish(skips.counts)
    for line in [*skips.report(), *lossy_lines(tokenizer), *_report(corpus)]:
        print(line)
    finished = f", {len(kept)} finished shards kept" if kept else ""
    speed = f"{bar.seconds:.1f} s, {encoded_bytes / 1e6 / bar.seconds:.1f} MB/s{finished}"
    print(f"{corpus.path}: {speed}, corpus {corpus.fingerprint[:12]}")


def _parameters(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments that decide the content of the corpus.

    Without --near-duplicates there is no key for it, as in manifests of earlier versions.
    """
    near = {"near_duplicates": args.near_duplicates} if args.near_duplicates else {}
    return {**source_parameters(args), "shard_mb": args.shard_mb, **near}


def _units_to_encode(shards: Iterator[TextShard], folder: ShardFolder, kept: list[int], bar: Bar) -> Iterator[Unit]:
    """Units of the shards that the folder does not have yet. The numbers of the others are added to `kept`."""
    for shard in shards:
        if folder.keeps(shard):
            kept.append(shard.index)
            bar.advance(shard.bytes)
        else:
            yield from units_of(shard)


def _report(corpus: Corpus) -> Iterator[str]:
    for name, split in corpus.splits.items():
        yield (
            f"{name}: {split.documents:,} documents, {split.bytes / 1e6:,.1f} MB, {split.tokens:,} tokens, "
            f"{split.bytes / split.tokens:.2f} bytes a token"
        )


def main() -> int:
    return run(tokenize)


if __name__ == "__main__":
    sys.exit(main())
