"""Prepared data of any content: opening, verifying and reading them ends with sensible batches or with a DataError."""

import hashlib
import io
import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from inputs import fuzzed, replaced
from mutations import changed_bytes, changed_json, changed_trees
from support import CLICK_TABLES, VOCAB, digest, make_answers, make_clicks, make_corpus, make_pairs

from comera_dist.data.answers import AnswerCorpus, PackedAnswers
from comera_dist.data.clicks import ClickBatch, ClickCorpus, ClickExamples
from comera_dist.data.manifest import MANIFEST
from comera_dist.data.masking import MaskedPairs
from comera_dist.data.pairs import LabelledPairs, PairCorpus
from comera_dist.data.shards import Corpus
from comera_dist.data.windows import TrainWindows, ValidationWindows
from comera_dist.ops.targets import IGNORED_TARGET
from data_prep.verify import verify

ROWS = np.array([0, 1, 17])
DRAWS = np.array([3, 5, 8])


def text(folder: Path) -> list:
    corpus = Corpus(folder)
    return [TrainWindows(corpus.split("train"), 16), ValidationWindows(corpus.split("valid"), 16)]


def pairs(folder: Path) -> list:
    corpus = PairCorpus(folder)
    return [LabelledPairs(corpus, "train", 16), MaskedPairs(corpus, "valid", 16, 0.15, seed=0)]


def answers(folder: Path) -> list:
    corpus = AnswerCorpus(folder)
    return [PackedAnswers(corpus, "train", 16), PackedAnswers(corpus, "valid", 30)]


def clicks(folder: Path) -> list:
    corpus = ClickCorpus(folder)
    return [ClickExamples(corpus, "train"), ClickExamples(corpus, "valid")]


class Kind(NamedTuple):
    make: Callable[[Path], Path]
    examples: Callable[[Path], list]


KINDS = {
    "text": Kind(lambda path: make_corpus(path, 900, 400), text),
    "pairs": Kind(lambda path: make_pairs(path, 20), pairs),
    "answers": Kind(lambda path: make_answers(path, 20), answers),
    "clicks": Kind(lambda path: make_clicks(path, 20), clicks),
}
kinds = st.sampled_from(sorted(KINDS))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A small data set of each kind. Every input changes one of its files, which is put back."""
    root = tmp_path_factory.mktemp("prepared")
    return {name: kind.make(root / name) for name, kind in KINDS.items()}


def read(kind: str, folder: Path) -> list[list[torch.Tensor]]:
    """Some rows of both splits, after the hashes. Raises DataError."""
    with redirect_stdout(io.StringIO()):
        verify([str(folder)])
    return rows_of(kind, folder)


def rows_of(kind: str, folder: Path) -> list[list[torch.Tensor]]:
    """Some rows of both splits. Every number in them is possible."""
    batches = [examples.batch(ROWS % len(examples), DRAWS) for examples in KINDS[kind].examples(folder)]
    vocab_size = json.loads((folder / MANIFEST).read_bytes()).get("vocab_size", 0)
    for batch in batches:
        check_possible(batch, vocab_size)
    return [list(batch) for batch in batches]


def check_possible(batch: tuple[torch.Tensor, ...], vocab_size: int) -> None:
    for tensor in batch:
        assert tensor.shape[0] == len(ROWS)
        assert torch.isfinite(tensor).all()
    if isinstance(batch, ClickBatch):
        assert set(batch.targets_B.tolist()) <= {0, 1}
    else:
        for tensor in (batch[0], batch[-1]):
            assert ((tensor == IGNORED_TARGET) | ((tensor >= 0) & (tensor < vocab_size))).all()


def of_same_data(found: list, expected: list) -> bool:
    return all(
        torch.equal(a, b) for one, other in zip(found, expected, strict=True) for a, b in zip(one, other, strict=True)
    )


@fuzzed("prepared data: tree of the manifest", 540, kind=kinds, data=st.data())
def test_any_tree_of_a_manifest(folders, kind, data):
    manifest = folders[kind] / MANIFEST
    with replaced({manifest: data.draw(changed_json(json.loads(manifest.read_bytes())))}):
        read(kind, folders[kind])


@fuzzed("prepared data: bytes of the manifest", 300, kind=kinds, data=st.data())
def test_any_bytes_of_a_manifest(folders, kind, data):
    manifest = folders[kind] / MANIFEST
    with replaced({manifest: data.draw(changed_bytes(manifest.read_bytes()))}):
        read(kind, folders[kind])


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)


@fuzzed("prepared data: bytes of a file", 300, kind=kinds, data=st.data())
def test_only_the_bytes_that_the_manifest_names_are_accepted(folders, kind, data):
    path = data.draw(st.sampled_from(files_of(folders[kind])))
    whole, content = path.read_bytes(), data.draw(changed_bytes(path.read_bytes()))
    with replaced({path: content}):
        read(kind, folders[kind])
    assert content == whole, "damage was not noticed"


def with_hash(folder: Path, path: Path, content: bytes) -> dict[Path, bytes]:
    """The file, all equal ones, and a manifest that names the sha256 of their new content."""
    manifest, old = folder / MANIFEST, digest(path)
    text = manifest.read_text().replace(old, hashlib.sha256(content).hexdigest())
    return {**{same: content for same in files_of(folder) if digest(same) == old}, manifest: text.encode()}


@fuzzed("prepared data: bytes of a file, hashed anew", 420, kind=kinds, data=st.data())
def test_any_bytes_with_the_right_hash(folders, kind, data):
    """A hash proves that a file is the one that was made, not that it makes sense."""
    path = data.draw(st.sampled_from(files_of(folders[kind])))
    whole = path.read_bytes()
    content = data.draw(st.binary(min_size=len(whole), max_size=len(whole)) | changed_bytes(whole))
    with replaced(with_hash(folders[kind], path, content)):
        read(kind, folders[kind])


def npy(header: str, rest: bytes) -> bytes:
    text = header.encode("latin1", "replace") + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + rest


_NPY = {"descr": "|b1", "fortran_order": False, "shape": (VOCAB + 4,)}


@fuzzed(
    "prepared data: header of an .npy file",
    180,
    header=changed_trees(_NPY).map(repr) | st.text(max_size=40) | st.just(repr(_NPY)),
    rest=st.binary(max_size=80) | st.just(b"\1" * (VOCAB + 4)),
)
def test_any_npy_file_with_the_right_hash(folders, header, rest):
    path = folders["pairs"] / "word_starts.npy"
    with replaced(with_hash(folders["pairs"], path, npy(header, rest))):
        read("pairs", folders["pairs"])


def test_what_was_not_changed_is_read(folders):
    for kind, folder in folders.items():
        assert of_same_data(read(kind, folder), rows_of(kind, folder))
    shutil.copytree(folders["clicks"], folders["clicks"].with_name("copy"))
    assert (read("clicks", folders["clicks"].with_name("copy"))[0][1] < torch.tensor(CLICK_TABLES)).all()
