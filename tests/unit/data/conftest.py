import io

import numpy as np
import pytest

from comera_dist.data.columns import Column
from comera_dist.data.pairs import PairCorpus
from data_prep.files.column_folder import ColumnFolder

_COLUMNS = {"tokens": Column("<u2"), "first_end": Column("<i8"), "second_end": Column("<i8"), "labels": Column("<i2")}


@pytest.fixture
def pair_corpus(tmp_path):
    """Writes one split `train` of pairs of token ids with labels; word borders are None or bool (V,) each."""

    def write(pairs, labels=None, vocab_size=200, starts_V=None, ends_V=None):
        folder = ColumnFolder(tmp_path / "pairs", "pairs", _COLUMNS, ["train"], {})
        end_2R = np.cumsum([len(text) for pair in pairs for text in pair], dtype=np.int64)
        tokens = np.array([token for pair in pairs for text in pair for token in text])
        flags = {"word_starts.npy": starts_V, "word_ends.npy": ends_V}
        with folder.writing():
            folder.append("train", {"tokens": tokens, "first_end": end_2R[::2], "second_end": end_2R[1::2]})
            folder.append("train", {"labels": np.full(len(pairs), -1) if labels is None else labels})
            facts = {"vocab_size": vocab_size, "labels": ["a", "b", "c"]}
            folder.publish(
                facts, {name: _npy(np.ones(vocab_size, bool) if v is None else v) for name, v in flags.items()}
            )
        return PairCorpus(tmp_path / "pairs")

    return write


def _npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
