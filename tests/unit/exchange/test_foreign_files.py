"""Files of a model of transformers that are not what they should be: each is named in a sentence."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file

from comera_dist.errors import CheckpointError, DataError
from comera_dist.exchange.foreign_files import INDEX, WEIGHTS, ForeignWeights, read_settings, tokenizer_hashes


def written(folder, **tensors):
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    return ForeignWeights(folder)


def test_weights_are_read_by_name_in_fp32(tmp_path):
    weights = written(
        tmp_path, a=torch.tensor([1.5, 2.0], dtype=torch.bfloat16), **{"b.LayerNorm.gamma": torch.ones(3)}
    )
    assert weights.size("a") == (2,)
    assert weights.size("b.LayerNorm.weight") == (3,)
    assert weights.size("c") is None
    assert torch.equal(weights.read("a"), torch.tensor([1.5, 2.0]))


@pytest.mark.parametrize(
    ("weight", "told"),
    [
        (
            torch.ones(2, dtype=torch.int8),
            "holds a as I8, expected one of F64, F32, F16, BF16; take a model",
        ),
        (torch.tensor([1.0, float("nan")]), "holds a with numbers that are not finite"),
        (torch.tensor([1e300], dtype=torch.float64), "holds a with numbers that are not finite"),
    ],
)
def test_numbers_without_a_meaning_are_refused(tmp_path, weight, told):
    with pytest.raises(CheckpointError, match=told):
        written(tmp_path, a=weight).read("a")


@pytest.mark.parametrize(
    "places",
    [None, [], "x", {"a": None}, {"a": ["x"]}, {"a": {}}],
    ids=["null", "list", "text", "no name", "names", "{}"],
)
def test_an_index_names_files(tmp_path, places):
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places}))
    with pytest.raises(CheckpointError, match="has no weight_map of weights and files"):
        ForeignWeights(tmp_path)


@pytest.mark.parametrize("name", ["", "..", "a\0b", "\ud800", "x" * 300])
def test_no_name_in_an_index_is_a_traceback(tmp_path, name):
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match="cannot be read"):
        ForeignWeights(tmp_path)


def test_pipes_and_folders_are_no_files(tmp_path):
    for name in (WEIGHTS, "tokenizer.json"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        ForeignWeights(tmp_path)
    (tmp_path / "tokenizer.model").mkdir()
    assert tokenizer_hashes(tmp_path) == {}
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="it is not a plain file"):
        read_settings(tmp_path)


def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    def refused(file):
        raise PermissionError(13, "Permission denied", str(file))

    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setattr("comera_dist.exchange.foreign_files.file_sha256", refused)
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\); mend the folder"):
        tokenizer_hashes(tmp_path)
