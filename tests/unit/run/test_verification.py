"""Every start looks at the content of its data, whatever their sizes and times say, and all processes agree on it."""

import os
import threading
from socket import gethostname

import pytest
from support import make_clicks, make_corpus, make_pairs

from comera_dist.data.columns import ColumnSet
from comera_dist.data.contents import Contents, Interrupted
from comera_dist.data.shards import Corpus
from comera_dist.errors import DataError
from comera_dist.run.data_check import DataCheck


class Peers:
    """Process `index` among others, of which hosts and sizes are `starts` and later (has ended, damage) `states`."""

    def __init__(self, index=0, starts=(), states=()):
        self.index, self._starts, self._states, self.said = index, starts, states, []

    def gather(self, thing):
        others = self._starts if isinstance(thing[0], str) else self._states
        return [*others[: self.index], thing, *others[self.index :]]

    def say(self, text):
        self.said.append(text)


def change(file):
    """One bit, with the same size and times."""
    facts, raw = file.stat(), file.read_bytes()
    file.write_bytes(bytes([raw[0] ^ 1]) + raw[1:])
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))


DATA = {
    "valid/00000.bin": (make_corpus, lambda folder: Corpus(folder)),
    "tokenizer.model": (make_corpus, lambda folder: Corpus(folder)),
    "word_ends.npy": (make_pairs, lambda folder: ColumnSet(folder, "pairs")),
    "train/labels.bin": (make_clicks, lambda folder: ColumnSet(folder, "clicks")),
}


@pytest.mark.parametrize("file", DATA)
def test_other_content_of_the_same_size_and_time_is_noticed_at_once(tmp_path, file):
    make, open_data = DATA[file]
    folder = make(tmp_path / "data")
    DataCheck(open_data(folder).contents, Peers())
    change(folder / file)
    data = open_data(folder)
    with pytest.raises(DataError, match=f"{file} is damaged: its sha256 is not the manifest's; copy the"):
        DataCheck(data.contents, Peers())


def test_what_another_process_has_found_is_everybodys_error(tmp_path):
    data = Corpus(make_corpus(tmp_path / "data"))
    with pytest.raises(DataError, match=r"^x is damaged$"):
        DataCheck(data.contents, Peers(1, [("elsewhere", 0)], [(True, "x is damaged")]))


class Watched(Contents):
    """Contents that call `check_file(file, is_stopped)` in place of hashing a file."""

    def __init__(self, contents, check_file):
        super().__init__(contents.sha256, contents.remedy)
        object.__setattr__(self, "check", check_file)


def test_processes_of_a_host_share_the_files_and_each_host_looks_at_all(tmp_path):
    hashed = []
    whole = Corpus(make_corpus(tmp_path / "data")).contents
    contents = Watched(whole, lambda file, is_stopped: hashed.append(file))
    here, elsewhere = (gethostname(), 0), ("elsewhere", 0)
    for index in range(2):
        DataCheck(contents, Peers(index, [here, elsewhere]))
        assert 0 < len(hashed) < len(whole.sha256) * (index + 1)
    assert sorted(hashed) == sorted(whole.sha256)
    DataCheck(contents, Peers(0, [elsewhere]))
    assert sorted(hashed) == sorted([*whole.sha256, *whole.sha256])


def test_large_data_are_looked_at_while_the_run_goes_on(tmp_path):
    whole, goes_on = Corpus(make_corpus(tmp_path / "data")).contents, threading.Event()
    contents = Watched(whole, lambda *arguments: goes_on.wait(10) and whole.check(*arguments))
    change(tmp_path / "data/train/00000.bin")
    check = DataCheck(contents, Peers(), wait_bytes=0)
    check.raise_if_damaged()  # nothing is known yet
    goes_on.set()
    check._thread.join()
    with pytest.raises(DataError, match=r"train/00000\.bin is damaged"):
        check.raise_if_damaged()


@pytest.mark.parametrize("ends_early", [False, True])
def test_a_run_that_ends_before_its_data_are_compared_says_so(tmp_path, ends_early):
    whole, peers, begun = Corpus(make_corpus(tmp_path / "data")).contents, Peers(), threading.Event()

    def endless(file, is_stopped):
        begun.set()
        while not is_stopped():
            pass
        raise Interrupted

    check = DataCheck(Watched(whole, endless) if ends_early else whole, peers, wait_bytes=0)
    if ends_early:
        begun.wait(10)
    else:
        check._thread.join()
        check.raise_if_damaged()
    check.close()
    assert ["verify.py" in text for text in peers.said] == [True] * ends_early


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path):
    data = Corpus(make_corpus(tmp_path / "data"))
    (tmp_path / "data/train/00000.bin").unlink()
    with pytest.raises(DataError, match=r"00000\.bin is missing; copy the data set"):
        DataCheck(data.contents, Peers())
