"""Reads prepared pairs of texts and lays each out as [CLS] first [SEP] second [SEP] with its target.

A token id is the id of the tokenizer + SPECIALS.

Shapes: B rows of a batch, S places of a row, T tokens of all texts, V token ids.
"""

from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comera_dist.data.batches import FILLER
from comera_dist.data.columns import Columns, ColumnSet
from comera_dist.data.manifest import PairsManifest, shortened
from comera_dist.data.open_tokenizer import tokenizer_file
from comera_dist.data.special_tokens import CLS, PADDING, SEP, SPECIALS
from comera_dist.errors import ConfigError, DataError, first_line
from comera_dist.ops.targets import IGNORED_TARGET

UNLABELLED = -1
WORD_STARTS, WORD_ENDS = "word_starts.npy", "word_ends.npy"
_MARKS = 3  # places of a row that [CLS] and both [SEP] take


def class_names(labels: Sequence[str], count: int) -> list[str]:
    """Distinct names of `count` classes: the labels of the data, then names as transformers gives them."""
    numbers = chain(range(len(labels), count), range(len(labels)))
    free = (name for number in numbers if (name := f"LABEL_{number}") not in labels)
    return [*labels, *islice(free, max(0, count - len(labels)))]


class PairBatch(NamedTuple):
    tokens_BS: Tensor
    token_types_BS: Tensor
    targets_B: Tensor


class PairCorpus(ColumnSet):
    """Pairs of texts that data_prep/prepare_pairs.py made.

    The columns of a split are `tokens` (all texts, flat), `first_end` and `second_end` (places in it), and `labels`.
    """

    specials = SPECIALS  # ids before those of the tokenizer

    def __init__(self, path: str | Path):
        super().__init__(path, "pairs")
        record = self._described_by(PairsManifest)
        self.vocab_size, self.labels, self.eos_id = record.vocab_size, record.labels, record.eos_id
        self.tokenizer_path = self.path / tokenizer_file(self.manifest.get("tokenizer"))
        for split, columns in self.splits.items():
            self._check_complete(split)
            rows = {name: len(columns[name]) for name in ("first_end", "second_end", "labels")}
            if len(set(rows.values())) > 1:
                raise self._misdescribed(f"columns of splits.{split} differ in entries: {rows}")

    def split(self, name: str) -> Columns:
        """Raises DataError if there is no such split, or nothing in it."""
        columns = super().split(name)
        if not len(columns["labels"]):
            raise DataError(f"split {name!r} of {self.path} has no pairs; prepare them again with more sources")
        return columns

    def check_labels(self, label_B: NDArray[np.int64]) -> None:
        """Raises DataError unless each label is a class of the manifest or UNLABELLED."""
        self.check_below("label", int(label_B.max()), len(self.labels))
        if (least := int(label_B.min())) < UNLABELLED:
            raise DataError(f"{self.path} holds label {least}, expected {UNLABELLED} or more; {self._remedy}")

    def word_borders(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether a word starts with token v, and whether a word ends with it, (V,) each."""
        return self._flags(WORD_STARTS), self._flags(WORD_ENDS)

    def _flags(self, name: str) -> NDArray[np.bool_]:
        path = self.path / name
        if path in self.contents.sha256:
            self.contents.check(path)
        try:
            # Unlike np.load it reads no archives, and takes no memory for a shape that the file does not have.
            flags_V: NDArray[np.bool_] = np.array(np.lib.format.open_memmap(path, mode="r"))
        except Exception as error:  # of any class: numpy parses the header as a literal of Python
            reason = shortened(first_line(error), 80)
            raise DataError(f"{path} cannot be read ({reason}); prepare the pairs again with --overwrite") from error
        if flags_V.shape != (self.vocab_size,) or flags_V.dtype != bool:
            raise DataError(
                f"{path} has {flags_V.dtype} of shape {flags_V.shape}, expected bool for {self.vocab_size} tokens; "
                "prepare the pairs again with --overwrite"
            )
        return flags_V


class JoinedPairs:
    """The rows of one split as token ids of one length. Raises ConfigError if `seq_len` leaves no place for texts."""

    def __init__(self, corpus: PairCorpus, name: str, seq_len: int):
        if seq_len < _MARKS + 2:
            raise ConfigError(f"data.seq_len = {seq_len} leaves no place for two texts; set it to {_MARKS + 2} or more")
        columns = corpus.split(name)
        self._tokens, self._first_end, self._second_end = (
            np.asarray(columns[column]) for column in ("tokens", "first_end", "second_end")
        )
        self._corpus, self._name, self._seq_len = corpus, name, seq_len

    def __len__(self) -> int:
        return len(self._first_end)

    def read(self, row_B: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Token ids and token types of `row_B`, as join_texts lays them out."""
        self._corpus.check_sizes(self._name)
        first_B, second_B = self._first_end[row_B], self._second_end[row_B]
        start_B = np.where(row_B > 0, self._second_end[row_B - 1], 0)
        self._check_ends(row_B, start_B, first_B, second_B)
        tokens_BS, types_BS = join_texts(self._tokens, start_B, first_B, second_B, self._seq_len)
        self._corpus.check_below("token", int(tokens_BS.max()), self._corpus.vocab_size)
        return tokens_BS, types_BS

    def _check_ends(self, row_B: NDArray[np.int64], *end_B: NDArray[np.int64]) -> None:
        """Raises DataError unless the first text of each row begins in the tokens and each end comes after the last."""
        places_EB = np.stack([np.zeros_like(row_B), *end_B, np.full_like(row_B, len(self._tokens))])
        wrong_B = (np.diff(places_EB, axis=0) < 0).any(axis=0)
        if wrong_B.any():
            row = int(np.flatnonzero(wrong_B)[0])
            raise DataError(
                f"{self._corpus.path} ends the texts of row {row_B[row]} at {places_EB[2, row]} and "
                f"{places_EB[3, row]}, expected growing places within {len(self._tokens)} tokens; "
                f"{self._corpus.contents.remedy}"
            )


class LabelledPairs:
    """Pairs to classify. A row without a label has IGNORED_TARGET."""

    def __init__(self, corpus: PairCorpus, name: str, seq_len: int):
        self._pairs, self._labels = JoinedPairs(corpus, name, seq_len), np.asarray(corpus.split(name)["labels"])
        self._corpus = corpus

    def __len__(self) -> int:
        return len(self._pairs)

    def batch(self, row_B: NDArray[np.int64], draw_B: NDArray[np.int64]) -> PairBatch:
        """The rows `row_B`; nothing in them is random. A row FILLER has no target."""
        real_B = np.maximum(row_B, 0)
        tokens_BS, types_BS = self._pairs.read(real_B)
        label_B = self._labels[real_B].astype(np.int64)
        self._corpus.check_labels(label_B)
        target_B = np.where((row_B == FILLER) | (label_B == UNLABELLED), IGNORED_TARGET, label_B)
        return PairBatch(*map(torch.from_numpy, (tokens_BS, types_BS, target_B)))


def join_texts(
    tokens_T: NDArray[Any],
    start_B: NDArray[np.int64],
    first_B: NDArray[np.int64],
    second_B: NDArray[np.int64],
    seq_len: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token ids and token types (1 for the second text and its [SEP]), (B, S) each, of pairs of texts in `tokens_T`.

    The first text of pair b lies between `start_B[b]` and `first_B[b]`, the second ends at `second_B[b]`.
    Texts that are too long together lose tokens from the end of the longer one, or of the second if both are equally
    long (google-research/bert, run_classifier.py, _truncate_seq_pair).
    """
    first_len_B, second_len_B = _cut(first_B - start_B, second_B - first_B, seq_len - _MARKS)
    place_S, sep_B1 = np.arange(seq_len), (first_len_B + 1)[:, None]
    last_B1 = sep_B1 + second_len_B[:, None] + 1
    types_BS = (place_S > sep_B1) & (place_S <= last_B1)
    source_BS = np.where(types_BS, first_B[:, None] - sep_B1, start_B[:, None]) + place_S - 1
    tokens_BS = tokens_T[source_BS.clip(0, len(tokens_T) - 1)].astype(np.int64)
    tokens_BS[(place_S == sep_B1) | (place_S == last_B1)] = SEP
    tokens_BS[place_S > last_B1] = PADDING
    tokens_BS[:, 0] = CLS
    return tokens_BS, types_BS.astype(np.int64)


def _cut(
    first_B: NDArray[np.int64], second_B: NDArray[np.int64], room: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The lengths after the longer text (the second, if equal) lost one token at a time until both fit in `room`."""
    second_B = np.minimum(second_B, np.maximum(room - first_B, room // 2))
    return np.minimum(first_B, room - second_B), second_B
