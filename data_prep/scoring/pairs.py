"""Pairs of texts to classify.

Shapes: B rows of a batch.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from comera_dist.config.data_section import Data
from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.data.pairs import PairCorpus, class_names, join_texts
from comera_dist.errors import DataError
from comera_dist.run.predict import InputRows
from data_prep.files.rows import check_readable, file_table
from data_prep.files.skips import Skips
from data_prep.files.sources import without_faults
from data_prep.pairs.sources import Keys, Pair, fault_of, pair_of
from data_prep.pairs.writer import encode_pairs
from data_prep.scoring.places import row_number


class PairRows:
    """A table with the columns of both texts, as the sources of the training data have them."""

    def __init__(self, path: Path, data: Data, skips: Skips, join: Path | None = None):
        if join is not None:
            raise DataError(f"--join {join} is for click logs; remove it")
        check_readable(path)
        corpus = PairCorpus(data.corpus)
        first, second, *_ = corpus.manifest["parameters"]["keys"]
        self._path, self._skips, self._seq_len = path, skips, data.seq_len
        self._keys, self._labels = Keys.named(first, second), corpus.labels
        self._tokenizer = open_tokenizer(corpus.tokenizer_path, corpus.eos_id)
        if self._tokenizer.fingerprint != corpus.manifest["tokenizer"]["sha256"]:
            raise DataError(f"{corpus.tokenizer_path} did not make these data; {corpus.contents.remedy}")

    def batches(self, size: int) -> Iterator[InputRows]:
        pairs = without_faults(self._pairs(), fault_of, self._skips)
        while chunk := list(itertools.islice(pairs, size)):
            columns = encode_pairs(chunk, self._tokenizer, start=0)
            second_B = columns["second_end"]
            start_B = np.concatenate([[0], second_B[:-1]])
            inputs = join_texts(columns["tokens"], start_B, columns["first_end"], second_B, self._seq_len)
            yield InputRows([row_number(pair.where) for pair in chunk], inputs)

    def record(self, number: int, probabilities: list[float]) -> dict[str, Any]:
        names = class_names(self._labels, len(probabilities))  # a model may have more classes than its data have labels
        label = names[int(np.argmax(probabilities))]
        return {"row": number, "label": label, "probabilities": dict(zip(names, probabilities, strict=True))}

    def notes(self) -> list[str]:
        return []

    def _pairs(self) -> Iterator[Pair]:
        table = file_table(self._path, self._skips)
        for where, row in table.rows:
            for columns in (self._keys.first, self._keys.second) if table.has_columns else ():
                if not any(column in row for column in columns):
                    raise DataError(
                        f"{self._path} has no column {' or '.join(columns)}, only {', '.join(row)}; give the texts the "
                        f"column names of the training data"
                    )
            if (pair := pair_of(where, row, self._keys, self._skips)) is not None:
                yield pair
