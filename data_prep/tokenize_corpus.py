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
from data_prep.files.progress import Bar, say_done
from data_prep.files.skips import Skips, told_on_failure
from data_prep.text.arguments import TOKENIZER_USAGE, add_source_arguments, open_source, similarity, source_parameters
from data_prep.text.document_stream import DocumentStream
from data_prep.text.encoding import encode_in_order, lossy_lines
from data_prep.text.near_copies import NEAR_COPY
from data_prep.text.shard_folder import ShardFolder
from data_prep.text.shards import Unit, units_of
from data_prep.text.sources import SKIPPED

MEGABYTE = 1_000_000


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
    skips = Skips(args.strict, (*SKIPPED, NEAR_COPY) if args.near_duplicates else SKIPPED)
    if not args.overwrite and folder.is_finished():
        skips.check_finished(args.output, folder.skipped())
        say_done(args.output, "tokenized")
        return
    kept, encoded_bytes = list[int](), 0
    stream = DocumentStream(*open_source(parameters), skips, splits, args.near_duplicates)
    with folder.writing(args.overwrite), told_on_failure(skips):
        with Bar(counts_bytes=True) as bar:
            bar.begin("tokenizing", stream.size_hint())
            _go_on(stream, folder, kept, bar)
            units = _units_to_encode(stream, args.shard_mb * MEGABYTE, folder, kept, bar)
            for unit, tokens in encode_in_order(units, args.tokenizer, args.workers):
                folder.append(unit, tokens)
                encoded_bytes += unit.bytes
                bar.advance(unit.bytes)
        corpus = folder.finish(skips.counts)
    for line in [*skips.report(), *stream.notes(), *lossy_lines(tokenizer), *_report(corpus)]:
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


def _go_on(stream: DocumentStream, folder: ShardFolder, kept: list[int], bar: Bar) -> None:
    """Lets the stream begin behind the shards of a run that was cut, if it can. Their bytes are added to `kept`."""
    if place := folder.place():
        stream.resume(place)
        kept += folder.keep_before(stream.filling)
        bar.advance(sum(kept))


def _units_to_encode(
    stream: DocumentStream, shard_bytes: int, folder: ShardFolder, kept: list[int], bar: Bar
) -> Iterator[Unit]:
    """Units of the shards that the folder does not have yet. The bytes of the others are added to `kept`."""
    for shard in stream.shards(shard_bytes):
        if folder.keeps(shard):
            kept.append(shard.bytes)
            bar.advance(shard.bytes)
        else:
            shard.behind = stream.place()
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
