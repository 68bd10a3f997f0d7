"""Turns sources of text into a corpus of memory-mapped token shards. A killed run goes on where it stopped.

python data_prep/tokenize_corpus.py --source python-stdlib --tokenizer corpora/python-stdlib/tokenizer.model \
    --output corpora/python-stdlib
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from comera_dist.data.shards import Corpus
from comera_dist.data.tokenizer import Tokenizer
from data_prep.command import (
    OneLineParser,
    add_source_arguments,
    open_source,
    positive,
    run,
    source_parameters,
)
from data_prep.corpus_folder import CorpusFolder
from data_prep.encoding import encode_in_order
from data_prep.shard_plan import TextShard, Unit, plan_shards, units_of
from data_prep.skips import Skips, told_on_failure
from data_prep.split import TRAIN, VALID, split_documents


class Bar:
    """Progress on stderr, and the sums for the report at the end."""

    def __init__(self, total: int | None):
        self.encoded_bytes = self.kept_shards = self.kept_bytes = 0
        self._columns = Progress(
            TextColumn("tokenizing"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._columns.add_task("", total=total)

    def __enter__(self) -> "Bar":
        self._columns.start()
        self.started = time.perf_counter()
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self.started
        self._columns.stop()

    def encoded(self, unit: Unit) -> None:
        self.encoded_bytes += unit.bytes
        self._columns.advance(self._task, unit.bytes)

    def kept(self, shard: TextShard) -> None:
        self.kept_shards += 1
        self.kept_bytes += shard.bytes
        self._columns.advance(self._task, shard.bytes)


def tokenize(args: argparse.Namespace) -> None:
    """The whole command; ComeraError with a sentence for whatever the user can mend."""
    tokenizer = Tokenizer(args.tokenizer)
    parameters = {**source_parameters(args), "shard_mb": args.shard_mb}
    splits = [TRAIN] if parameters["valid_fraction"] == 0 else [TRAIN, VALID]
    folder = CorpusFolder(args.output, tokenizer, parameters, splits)
    if not args.overwrite and folder.is_finished():
        print(f"{args.output} is already tokenized with these settings; nothing to do.")
        return
    source, rule = open_source(parameters)
    skips = Skips(args.strict)
    with folder.claim(args.overwrite), told_on_failure(skips):
        with Bar(source.size_hint()) as bar:
            shards = plan_shards(split_documents(source, rule, skips), args.shard_mb * 1_000_000, splits)
            units = _units_to_encode(shards, folder, bar)
            for unit, tokens in encode_in_order(units, args.tokenizer, args.workers):
                folder.append(unit, tokens)
                bar.encoded(unit)
        corpus = folder.publish(skips.counts)
    report(corpus, skips, bar)


def _units_to_encode(shards: Iterator[TextShard], folder: CorpusFolder, bar: Bar) -> Iterator[Unit]:
    for shard in shards:
        if folder.keeps(shard):
            bar.kept(shard)
        else:
            yield from units_of(shard)


def report(corpus: Corpus, skips: Skips, bar: Bar) -> None:
    for line in skips.report():
        print(line)
    for name, split in corpus.splits.items():
        print(
            f"{name}: {split.documents:,} documents, {split.bytes / 1e6:,.1f} MB, {split.tokens:,} tokens, "
            f"{split.bytes / split.tokens:.2f} bytes a token"
        )
    kept = f", {bar.kept_shards} finished shards kept" if bar.kept_shards else ""
    speed = bar.encoded_bytes / 1e6 / bar.seconds
    print(f"{corpus.path}: {bar.seconds:.1f} s, {speed:.1f} MB/s{kept}, corpus {corpus.fingerprint[:12]}")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = OneLineParser(description="Tokenize a source into a corpus that training reads.")
    add_source_arguments(parser)
    parser.add_argument("--tokenizer", type=Path, required=True, help="model of train_tokenizer.py")
    parser.add_argument("--output", type=Path, required=True, help="folder of the corpus")
    parser.add_argument("--shard-mb", type=positive, default=32, help="text of a shard; a killed run loses at most one")
    parser.add_argument(
        "--workers", type=positive, default=len(os.sched_getaffinity(0)), help="processes that tokenize"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    tokenize(parse_arguments(argv))


if __name__ == "__main__":
    sys.exit(run(main))
