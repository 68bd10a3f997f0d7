"""Trains the tokenizer of a corpus: byte-pair encoding with byte fallback, on the training documents only.

python data_prep/train_tokenizer.py --source python-stdlib --vocab-size 4096 \
    --output corpora/python-stdlib/tokenizer.model
"""

import argparse
import hashlib
import io
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import sentencepiece

from comera_dist.data.contents import file_sha256
from comera_dist.data.tokenizer import SPACE_MARK, Tokenizer
from comera_dist.errors import DataError
from data_prep.command import (
    OneLineParser,
    add_source_arguments,
    open_source,
    positive,
    run,
    source_parameters,
)
from data_prep.skips import Skips, told_on_failure
from data_prep.split import TRAIN, VALID, split_documents

# An indent is one token, and a tab and a newline are tokens of their own.
_SPACE_RUNS = [SPACE_MARK * length for length in (*range(2, 17), 20, 24)]
DEFAULT_MAX_BYTES = 256_000_000
_MAX_LINE = 1 << 14  # characters; longer lines are cut for training, so that none is dropped


def train_model(texts: Iterator[str], vocab_size: int) -> bytes:
    """Bytes of a sentencepiece model; the same texts give the same bytes.

    DataError when `vocab_size` is too small for bytes and characters, or too large for the texts.
    """
    model, interruptions = io.BytesIO(), []
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_lines(texts, interruptions),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,
            split_digits=True,
            character_coverage=0.9995,
            user_defined_symbols=["\n", "\t", *_SPACE_RUNS],
            max_sentence_length=8 * _MAX_LINE,
            num_threads=4,  # written into the model: a fixed number, so that every machine writes the same
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as error:  # ValueError: numbers that do not fit its own
        if interruptions:  # sentencepiece makes a RuntimeError of whatever its reader raises
            raise interruptions[0] from None
        reason = re.sub(r"^.*\] ", "", str(error).strip().splitlines()[-1]) or "there is no training text."
        raise DataError(f"No tokenizer with {vocab_size} entries can be trained on this text: {reason}") from error
    return model.getvalue()


def _lines(texts: Iterator[str], interruptions: list[BaseException]) -> Iterator[str]:
    try:
        for text in texts:
            for line in text.replace(SPACE_MARK, "\n").split("\n"):
                for start in range(0, len(line), _MAX_LINE):
                    yield line[start : start + _MAX_LINE]
    except BaseException as interruption:
        interruptions.append(interruption)
        raise


def train_texts(parameters: dict, skips: Skips) -> Iterator[str]:
    """Training documents in source order until `max_bytes` of text are reached."""
    documents = split_documents(*open_source(parameters), skips)
    return first_bytes(_of_train(documents), parameters["max_bytes"])


def _of_train(documents: Iterator[tuple[str, str]]) -> Iterator[str]:
    """DataError at the end where there is none."""
    count = dict.fromkeys((TRAIN, VALID), 0)
    for split, text in documents:
        count[split] += 1
        if split == TRAIN:
            yield text
    if not count[TRAIN] and count[VALID]:
        raise DataError(
            f"All documents fell to validation, {count[VALID]} of them, and none is left to learn from; pass "
            "--valid-fraction 0, or separate them with --document-separator, as for tokenize_corpus.py."
        )
    if not count[TRAIN]:
        raise DataError("No training document was found; check --source and --text-key.")


def first_bytes(texts: Iterator[str], max_bytes: int) -> Iterator[str]:
    """Texts until `max_bytes` of UTF-8 are reached."""
    read = 0
    for text in texts:
        yield text
        read += len(text.encode())
        if read >= max_bytes:
            print(f"Training on the first {read / 1e6:.0f} MB of text (--max-bytes).")
            return


def already_trained(output: Path, parameters: dict) -> bool:
    """Whether `output` was made with `parameters`; DataError when it was made with others."""
    if not output.exists():
        return False
    try:
        record = json.loads(_record_path(output).read_bytes())
        if record == {**parameters, "sha256": file_sha256(output)}:
            return True
    except (OSError, ValueError):
        pass
    raise DataError(f"{output} exists and was made with other settings; pass --overwrite, or name another file.")


def save(model: bytes, output: Path, parameters: dict) -> None:
    """Writes the record first and the model last: a model without its own record cannot appear."""
    output.parent.mkdir(parents=True, exist_ok=True)
    record = {**parameters, "sha256": hashlib.sha256(model).hexdigest()}
    for path, content in ((_record_path(output), json.dumps(record, indent=1).encode()), (output, model)):
        partial = path.with_name(f".{path.name}.partial")
        partial.write_bytes(content)
        os.replace(partial, path)


def _record_path(output: Path) -> Path:
    return output.with_name(output.name + ".json")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = OneLineParser(description="Train a tokenizer on the training documents of sources.")
    add_source_arguments(parser)
    parser.add_argument("--vocab-size", type=positive, default=4096)
    parser.add_argument("--output", type=Path, required=True, help="model file to write")
    parser.add_argument(
        "--max-bytes", type=positive, default=DEFAULT_MAX_BYTES, help="train on the first bytes of the source"
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    parameters = {**source_parameters(args), "vocab_size": args.vocab_size, "max_bytes": args.max_bytes}
    if not args.overwrite and already_trained(args.output, parameters):
        print(f"{args.output} is already trained with these settings; nothing to do.")
        return
    skips, started = Skips(args.strict), time.perf_counter()
    with told_on_failure(skips):
        model = train_model(train_texts(parameters, skips), args.vocab_size)
    save(model, args.output, parameters)
    tokenizer = Tokenizer(args.output)
    for line in skips.report():
        print(line)
    print(f"{args.output}: {tokenizer.vocab_size} entries in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    sys.exit(run(main))
