"""The command that compares prepared data of any kind with their manifest."""

import pytest
from support import make_clicks, make_corpus, make_pairs

from comera_dist.errors import DataError
from data_prep.verify import verify


@pytest.mark.parametrize(
    ("make", "file"),
    [(make_corpus, "valid/00000.bin"), (make_pairs, "word_ends.npy"), (make_clicks, "train/labels.bin")],
)
def test_whole_data_pass_and_damaged_ones_are_named(make, file, tmp_path, capsys):
    folder = make(tmp_path / "data")
    verify([str(folder)])
    assert "every file is as the manifest says" in capsys.readouterr().out
    damaged = folder / file
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    with pytest.raises(DataError, match=f"{damaged} is damaged"):
        verify([str(folder)])


def test_a_folder_without_data_is_refused(tmp_path):
    with pytest.raises(DataError, match="no data set at"):
        verify([str(tmp_path)])
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(DataError, match="does not describe text: it is not an object"):
        verify([str(tmp_path)])
