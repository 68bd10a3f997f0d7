"""Trains the tokenizer of a corpus on its training documents.

python data_prep/train_tokenizer.py --source python-stdlib --vocab-size 4096 \
    --output corpora/python-stdlib/tokenizer.model
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.errors import DataError
from data_prep.command import OneLineParser, positive, run
from data_prep.files.progress import say_done
from data_prep.files.skips import Skips, told_on_failure
from data_prep.files.split import TRAIN, VALID, split_items
from data_prep.text.arguments import add_source_arguments, open_source, source_parameters
from data_prep.text.sources import COPIES, SKIPPED, Document
from data_prep.text.tokenizer import MAX_BYTES, already_trained, check_record_is_ours, first_bytes, save, train_model


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = OneLineParser(description="Train a tokenizer on the training documents of sources.")
    add_source_arguments(parser)
    parser.add_argument("--vocab-size", type=positive, default=4096)
    parser.add_argument("--output", type=Path, required=True, help="model file to write")
    parser.add_argument("--max-bytes", type=positive, default=MAX_BYTES, help="train on the first bytes of the source")
    return parser.parse_args(argv)


def train(argv: list[str] | None = None) -> None:
    """The whole command. Raises ComeraError for everything that the user can mend."""
    args = parse_arguments(argv)
    parameters = {**source_parameters(args), "vocab_size": args.vocab_size, "max_bytes": args.max_bytes}
    skips, started = Skips(args.strict, SKIPPED), time.perf_counter()
    check_record_is_ours(args.output)
    if not args.overwrite and already_trained(args.output, parameters, skips):
        say_done(args.output, "trained")
        return
    with told_on_failure(skips):
        source, rule = open_source(parameters)
        texts = _of_train(split_items(source, rule, skips, COPIES))
        model = train_model(first_bytes(texts, args.max_bytes), args.vocab_size)
    save(model, args.output, parameters, skips)
    vocab_size = open_tokenizer(args.output).vocab_size
    for line in [*skips.report(), *source.notes()]:
        print(line)
    print(f"{args.output}: {vocab_size} entries in {time.perf_counter() - started:.1f} s")


def _of_train(documents: Iterator[tuple[str, Document]]) -> Iterator[str]:
    """The texts of train. Raises DataError at the end if there are none."""
    count = dict.fromkeys((TRAIN, VALID), 0)
    for split, document in documents:
        count[split] += 1
        if split == TRAIN:
            yield document.words
    if not count[TRAIN] and count[VALID]:
        raise DataError(
            f"all documents fell to validation, {count[VALID]} of them, and none is left to learn from; pass "
            "--valid-fraction 0, or separate them with --document-separator, as for tokenize_corpus.py"
        )
    if not count[TRAIN]:
        raise DataError("no training document was found; check --source, and --text-key of tables")


def main() -> int:
    return run(train)


if __name__ == "__main__":
    sys.exit(main())
