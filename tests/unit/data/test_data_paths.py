"""A manifest of prepared data names files of its own folder alone."""

import json
import os

import pytest
from support import digest, make_clicks, make_corpus, make_pairs

from comera_dist.data.clicks import ClickCorpus
from comera_dist.data.pairs import PairCorpus
from comera_dist.data.shards import Corpus
from comera_dist.errors import DataError
from data_prep.verify import verify

OUTSIDE = ["../x", "/etc/hostname", "train/../../x", "a\0b", "..", ".hidden", "", "x\n", "é", "~root"]
OPENED = {Corpus: make_corpus, PairCorpus: make_pairs, ClickCorpus: make_clicks}


def changed(folder, change):
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def refuses(opener, folder):
    for read in (lambda: opener(folder), lambda: verify([str(folder)])):
        with pytest.raises(DataError, match=r"manifest\.json does not describe"):
            read()


@pytest.mark.parametrize("name", OUTSIDE, ids=ascii)
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    text, pairs, clicks = (make(tmp_path / make.__name__) for make in OPENED.values())
    refuses(Corpus, changed(text, lambda manifest: manifest["tokenizer"].update(file=name)))
    refuses(PairCorpus, changed(pairs, lambda manifest: manifest["files"].update({name: "0" * 64})))
    refuses(
        ClickCorpus, changed(clicks, lambda manifest: manifest["splits"].update({name: manifest["splits"]["train"]}))
    )


@pytest.mark.parametrize("name", OUTSIDE, ids=ascii)
def test_no_split_or_column_or_shard_leads_out_of_the_folder(tmp_path, name):
    text, pairs, clicks = (make(tmp_path / make.__name__) for make in OPENED.values())
    refuses(Corpus, changed(text, lambda manifest: manifest["splits"]["train"]["shards"][0].update(file=name)))
    refuses(PairCorpus, changed(pairs, lambda manifest: manifest["splits"]["train"].update({name: {}})))
    refuses(ClickCorpus, changed(clicks, lambda manifest: manifest["splits"].update({name: {}})))


@pytest.mark.parametrize(("opener", "file"), [(Corpus, "train/00000.bin"), (ClickCorpus, "train/labels.bin")])
def test_what_a_link_leads_to_must_have_the_hash(tmp_path, opener, file, capsys):
    """People keep data on other disks behind links. A link to anything else is damage."""
    folder = OPENED[opener](tmp_path / "data")
    elsewhere, path = tmp_path / "elsewhere", folder / file
    os.rename(path, elsewhere)
    path.symlink_to(elsewhere)
    verify([str(folder)])
    other = tmp_path / "private"
    other.write_bytes(b"\1" * elsewhere.stat().st_size)
    assert digest(other) != digest(elsewhere)
    path.unlink()
    path.symlink_to(other)
    with pytest.raises(DataError, match="is damaged: its sha256 is not the manifest's"):
        verify([str(folder)])


@pytest.mark.parametrize("name", ["manifest.json", "train/00000.bin", "tokenizer.model"])
def test_a_pipe_in_place_of_a_file_is_refused_at_once(tmp_path, name):
    folder = make_corpus(tmp_path / "data")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(DataError, match=r"is missing|is not a plain file"):
        verify([str(folder)])
