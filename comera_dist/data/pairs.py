"""Pairs of texts as rows of batches: [CLS] first [SEP] second [SEP], and what to tell of them.

Legend: B rows of a batch, S places of a row, V token ids. Ids are those of the tokenizer + SPECIALS.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from comera_dist.data.batches import FILLER
from comera_dist.data.columns import MOST_IDS, ColumnSet
from comera_dist.data.manifest import ManifestError
from comera_dist.data.shards import MANIFEST
from comera_dist.data.special_tokens import CLS, PADDING, SEP, SPECIALS
from comera_dist.errors import ConfigError, DataError
from comera_dist.ops.targets import IGNORED_TARGET

UNLABELLED = -1
WORD_STARTS, WORD_ENDS = "word_starts.npy", "word_ends.npy"
_MARKS = 3  # places of a row that [CLS] and both [SEP] take


class PairBatch(NamedTuple):
    tokens_BS: torch.Tensor
    token_types_BS: torch.Tensor
    targets_B: torch.Tensor


class PairCorpus:
    """An opened data set of data_prep/prepare_pairs.py. DataError when it is missing, of another kind, or cut short."""

    def __init__(self, path: str | Path):
        self._set = ColumnSet(path, "pairs")
        self.manifest = self._set.manifest
        self.fingerprint, self.contents = self._set.fingerprint, self._set.contents
        try:
            self.vocab_size: int = self._set.fields.whole("vocab_size", SPECIALS, MOST_IDS)
            self.labels: list[str] = self._set.fields.texts("labels")
            for split, columns in self._set.splits.items():
                _check_columns(split, columns)
        except ManifestError as error:
            raise self._set.undescribed(error) from error

    def split(self, name: str) -> dict[str, np.ndarray]:
        """Columns tokens (all texts, flat), first_end and second_end (places in it), labels. DataError if absent."""
        columns = self._set.split(name)
        if not len(columns["labels"]):
            raise DataError(f"Split {name!r} of {self._set.path} has no pairs; prepare them again with more sources.")
        return columns

    def check_sizes(self, split: str) -> None:
        """DataError where a file of `split` was cut meanwhile."""
        self._set.check_sizes(split)

    def check_below(self, what: str, largest: int, bound: int) -> None:
        """DataError where the columns hold a number that the manifest does not know."""
        if largest >= bound:
            raise DataError(
                f"{self._set.path} holds {what} {largest} and its {MANIFEST} knows {bound}; {self.contents.remedy}."
            )

    def word_borders(self) -> tuple[np.ndarray, np.ndarray]:
        """Whether a word begins with token v, and whether one ends with it: bool (V,) each."""
        return self._flags(WORD_STARTS), self._flags(WORD_ENDS)

    def _flags(self, name: str) -> np.ndarray:
        path = self._set.path / name
        if path in self.contents.sha256:
            self.contents.check(path)
        try:
            flags_V: np.ndarray = np.load(path)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path} cannot be read ({error}); prepare the pairs again with --overwrite.") from error
        if flags_V.shape != (self.vocab_size,) or flags_V.dtype != bool:
            raise DataError(
                f"{path} has {flags_V.dtype} of shape {flags_V.shape}, expected bool for {self.vocab_size} tokens; "
                "prepare the pairs again with --overwrite."
            )
        return flags_V


def _check_columns(split: str, columns: dict[str, np.ndarray]) -> None:
    """ManifestError unless all columns are there, and as many ends and labels as rows."""
    missing = [name for name in ("tokens", "first_end", "second_end", "labels") if name not in columns]
    if missing:
        raise ManifestError(f"splits.{split}.{missing[0]} is missing")
    rows = {name: len(columns[name]) for name in ("first_end", "second_end", "labels")}
    if len(set(rows.values())) > 1:
        raise ManifestError(f"columns of splits.{split} differ in entries: {rows}")


class JoinedPairs:
    """The rows of one split as token ids of one length. ConfigError when it is too short for any text."""

    def __init__(self, corpus: PairCorpus, name: str, seq_len: int):
        if seq_len < _MARKS + 2:
            raise ConfigError(
                f"data.seq_len = {seq_len} leaves no place for two texts; set it to {_MARKS + 2} or more."
            )
        columns = corpus.split(name)
        self._tokens, self._first_end, self._second_end = (
            np.asarray(columns[column]) for column in ("tokens", "first_end", "second_end")
        )
        self._corpus, self._name, self._seq_len = corpus, name, seq_len

    def __len__(self) -> int:
        return len(self._first_end)

    def read(self, row_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Token ids and token types (1 for the second text and its [SEP]) of `row_B`, int64 (B, S) each.

        Texts that are too long together lose tokens from the end of the longer one, the second where both are as
        long (google-research/bert, run_classifier.py, _truncate_seq_pair).
        """
        self._corpus.check_sizes(self._name)
        first_B, second_B = self._first_end[row_B], self._second_end[row_B]
        start_B = np.where(row_B > 0, self._second_end[row_B - 1], 0)
        first_len_B, second_len_B = _cut(first_B - start_B, second_B - first_B, self._seq_len - _MARKS)
        place_S, sep_B1 = np.arange(self._seq_len), (first_len_B + 1)[:, None]
        last_B1 = sep_B1 + second_len_B[:, None] + 1
        types_BS = (place_S > sep_B1) & (place_S <= last_B1)
        source_BS = np.where(types_BS, first_B[:, None] - sep_B1, start_B[:, None]) + place_S - 1
        tokens_BS = self._tokens[source_BS.clip(0, len(self._tokens) - 1)].astype(np.int64)
        tokens_BS[(place_S == sep_B1) | (place_S == last_B1)] = SEP
        tokens_BS[place_S > last_B1] = PADDING
        tokens_BS[:, 0] = CLS
        self._corpus.check_below("token", int(tokens_BS.max()), self._corpus.vocab_size)
        return tokens_BS, types_BS.astype(np.int64)


class LabelledPairs:
    """Pairs to classify; a row without a label has IGNORED_TARGET."""

    def __init__(self, corpus: PairCorpus, name: str, seq_len: int):
        self._pairs, self._labels = JoinedPairs(corpus, name, seq_len), np.asarray(corpus.split(name)["labels"])
        self._corpus = corpus

    def __len__(self) -> int:
        return len(self._pairs)

    def batch(self, row_B: np.ndarray, draw_B: np.ndarray) -> PairBatch:
        """The rows `row_B`, of which FILLER has no target; nothing about them is random."""
        real_B = np.maximum(row_B, 0)
        tokens_BS, types_BS = self._pairs.read(real_B)
        label_B = self._labels[real_B].astype(np.int64)
        self._corpus.check_below("label", int(label_B.max()), len(self._corpus.labels))
        target_B = np.where((row_B == FILLER) | (label_B == UNLABELLED), IGNORED_TARGET, label_B)
        return PairBatch(*map(torch.from_numpy, (tokens_BS, types_BS, target_B)))


def _cut(first_B: np.ndarray, second_B: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths that fit into `room` together, when the longer one (if equal, the second) gives one token at a time."""
    second_B = np.minimum(second_B, np.maximum(room - first_B, room // 2))
    return np.minimum(first_B, room - second_B), second_B
