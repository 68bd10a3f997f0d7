"""Trains a tokenizer: byte-pair encoding with byte fallback. The same texts give the same bytes.

Ids are sorted by falling frequency, as a vocabulary whose frequent tokens get larger vectors needs them.
"""

import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from comera_dist.data.contents import file_sha256
from comera_dist.data.tokenizer import SPACE_MARK
from comera_dist.errors import DataError
from comera_dist.storage.files import write_whole
from data_prep.files.output_folder import check_without_secrets
from data_prep.files.skips import Skips, faults_of

# An indent is one token; a tab and a newline are tokens of their own.
_SPACE_RUNS = [SPACE_MARK * length for length in (*range(2, 17), 20, 24)]
MAX_BYTES = 256_000_000  # chosen: of text that is trained on by default
_MAX_LINE = 1 << 14  # chosen: characters; longer lines are cut, because sentencepiece drops lines over its limit
_MOST_ENTRIES = 1 << 24  # chosen: 64 times the largest vocabularies; sentencepiece takes 7 s to refuse 10^9 of them
_COUNTED = 10_000_000  # chosen: characters in which tokens are counted, about three seconds of work


def train_model(texts: Iterator[str], vocab_size: int) -> bytes:
    """Bytes of a sentencepiece model.

    Raises DataError if `vocab_size` is too small for bytes and characters, or too large for the texts.
    """
    if vocab_size > _MOST_ENTRIES:
        raise DataError(f"--vocab-size {vocab_size} is more than {_MOST_ENTRIES:,} entries; name fewer")
    model, interruptions, sample = io.BytesIO(), list[BaseException](), list[str]()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_lines(_sampled(texts, sample), interruptions),
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
            max_sentence_length=8 * _MAX_LINE,  # bytes
            num_threads=4,  # written into the model: a fixed number, so that every machine writes the same
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as error:  # ValueError: a number is out of its range
        if interruptions:  # sentencepiece turns any error of its iterator into a RuntimeError
            raise interruptions[0] from None
        reason = re.sub(r"^.*\] ", "", str(error).strip().splitlines()[-1]).rstrip(".") or "there is no training text"
        raise DataError(
            f"no tokenizer with {vocab_size} entries can be trained on this text ({reason}); change --vocab-size, or "
            "check --source"
        ) from error
    return sorted_by_frequency(model.getvalue(), sample)


def sorted_by_frequency(model: bytes, texts: Iterable[str]) -> bytes:
    """The model with ids in the order of falling frequency in `texts`; control tokens stay first.

    Texts are cut into the same pieces: sentencepiece merges by scores, not by ids.
    """
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]  # it is made at import
    processor, counts = sentencepiece.SentencePieceProcessor(model_proto=model), Counter[int]()
    for text in texts:
        counts[processor.piece_to_id("\n")] += text.count("\n")
        for ids in processor.encode(text.split("\n"), num_threads=1):
            counts.update(ids)
    control = [i for i in range(len(proto.pieces)) if processor.is_control(i) or processor.is_unknown(i)]
    others = sorted(set(range(len(proto.pieces))) - set(control), key=lambda i: (-counts[i], i))
    pieces = [proto.pieces[i] for i in (*control, *others)]
    del proto.pieces[:]
    proto.pieces.extend(pieces)
    result: bytes = proto.SerializeToString(deterministic=True)
    return result


def _sampled(texts: Iterator[str], sample: list[str]) -> Iterator[str]:
    """The texts; the first ones are also added to `sample`."""
    size = 0
    for text in texts:
        if size < _COUNTED:
            sample.append(text[: _COUNTED - size])
            size += len(text)
        yield text


def _lines(texts: Iterator[str], interruptions: list[BaseException]) -> Iterator[str]:
    try:
        for text in texts:
            for line in text.replace(SPACE_MARK, "\n").split("\n"):
                for start in range(0, len(line), _MAX_LINE):
                    yield line[start : start + _MAX_LINE]
    except BaseException as interruption:
        interruptions.append(interruption)
        raise


def first_bytes(texts: Iterator[str], max_bytes: int) -> Iterator[str]:
    """Texts until `max_bytes` of UTF-8 are reached."""
    read = 0
    for text in texts:
        yield text
        read += len(text.encode())
        if read >= max_bytes:
            print(f"Training on the first {read / 1e6:.0f} MB of text (--max-bytes).")
            return


def already_trained(output: Path, parameters: dict[str, Any], skips: Skips) -> bool:
    """True if `output` was made with `parameters`.

    Raises DataError if it was made with others, or if `skips` are strict and it was made without some faulty parts.
    """
    if not output.exists():
        return False
    record = _record_of(output)
    skipped = record.pop("skipped", None)
    if record != {**parameters, "sha256": file_sha256(output)}:
        raise DataError(f"{output} exists and was made with other settings; pass --overwrite, or name another file")
    skips.check_finished(output, skipped)
    return True


def check_record_is_ours(output: Path) -> None:
    """DataError if the record beside `output` would replace a file of others, as `tokenizer` does a tokenizer.json."""
    record = _record_of(output)
    if "sha256" not in record and (record or (_record_path(output).exists() and not output.exists())):
        raise DataError(
            f"{_record_path(output)} is no record of a trained tokenizer, and that of {output} would replace it; name "
            f"another file, such as {output.with_name(output.name + '.model')}"
        )


def save(model: bytes, output: Path, parameters: dict[str, Any], skips: Skips) -> None:
    """Writes the record first and the model last: a model without its own record cannot appear.

    The record names `skips` only if there are faults, so that all other records stay the same as in earlier versions.
    Raises DataError if the record would hold a secret.
    """
    check_without_secrets(output, parameters)
    output.parent.mkdir(parents=True, exist_ok=True)
    faults = faults_of(skips.counts)
    record = {**parameters, "sha256": hashlib.sha256(model).hexdigest(), **({"skipped": faults} if faults else {})}
    write_whole(_record_path(output), json.dumps(record, indent=1), flushed=True)
    write_whole(output, model, flushed=True)


def _record_of(output: Path) -> dict[str, Any]:
    """The record beside a model, {} if it is missing or damaged."""
    try:
        record = json.loads(_record_path(output).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _record_path(output: Path) -> Path:
    return output.with_name(output.name + ".json")
