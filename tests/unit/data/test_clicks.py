"""Batches of clicks against the rows themselves, and the area under the ROC curve against all pairs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comera_dist.data.batches import FILLER, TrainBatches, ValidationBatches
from comera_dist.data.clicks import ClickCorpus, ClickExamples, auc
from comera_dist.data.columns import Column
from comera_dist.errors import DataError
from comera_dist.ops.targets import IGNORED_TARGET
from data_prep.files.column_folder import ColumnFolder

ROWS, TABLE_ROWS = 50, 2**31 - 1


def make(path, dense=2, categories=3):
    """Splits train and, without rows, valid; the arrays of train."""
    columns = {"categories": Column("<i4", categories), "labels": Column("|i1")}
    columns.update({"dense": Column("<f4", dense)} if dense else {})
    random = np.random.default_rng(1)
    arrays = {
        "categories": random.integers(0, TABLE_ROWS, (ROWS, categories)),
        "labels": random.integers(0, 2, ROWS),
        "dense": random.standard_normal((ROWS, dense)).astype(np.float32),
    }
    folder = ColumnFolder(path, "clicks", columns, ["train", "valid"], {})
    with folder.writing():
        folder.append("train", {name: arrays[name] for name in columns})
        folder.publish({"dense": ["x"] * dense, "table_rows": [TABLE_ROWS] * categories})
    return arrays


@pytest.mark.parametrize(("dense", "categories"), [(2, 3), (0, 3), (1, 1)])
def test_a_batch_holds_the_rows_that_were_asked_for(tmp_path, dense, categories):
    arrays, corpus = make(tmp_path, dense, categories), ClickCorpus(tmp_path)
    assert (corpus.dense_features, corpus.table_rows) == (dense, (TABLE_ROWS,) * categories)
    examples = ClickExamples(corpus, "train")
    assert len(examples) == ROWS
    row_B = np.array([49, FILLER, 3, 3, 0, FILLER])
    dense_BF, categories_BC, targets_B = examples.batch(row_B, row_B)
    assert (dense_BF.dtype, categories_BC.dtype, targets_B.dtype) == (torch.float32, torch.int64, torch.int64)
    assert (dense_BF.shape, categories_BC.shape) == ((6, dense), (6, categories))
    for b, row in enumerate(row_B):
        filler = row == FILLER
        assert targets_B[b] == (IGNORED_TARGET if filler else arrays["labels"][row])
        assert categories_BC[b].tolist() == ([0] * categories if filler else arrays["categories"][row].tolist())
        assert dense_BF[b].tolist() == ([0.0] * dense if filler else arrays["dense"][row].tolist())


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("labels", 2, "holds the label 2, expected 0 or 1; copy the data set again"),
        ("labels", -100, "holds the label -100, expected 0 or 1"),
        ("dense", np.nan, "holds the number nan, expected a finite one"),
        ("dense", -np.inf, "holds the number -inf, expected a finite one"),
    ],
)
def test_numbers_without_a_meaning_are_refused(tmp_path, column, value, sentence):
    """The hash proves that a file is as it was made, not that another program made it well."""
    arrays = make(tmp_path)
    arrays[column][7] = value
    arrays[column].astype({"labels": "|i1", "dense": "<f4"}[column]).tofile(tmp_path / "train" / f"{column}.bin")
    examples = ClickExamples(ClickCorpus(tmp_path), "train")
    examples.batch(np.arange(7), np.arange(7))
    with pytest.raises(DataError, match=sentence):
        examples.batch(np.arange(8), np.arange(8))


def test_batches_can_be_written_to_and_the_data_stay(tmp_path):
    make(tmp_path)
    examples, row_B = ClickExamples(ClickCorpus(tmp_path), "train"), np.arange(4)
    before = [tensor.clone() for tensor in examples.batch(row_B, row_B)]
    for tensor in examples.batch(row_B, row_B):
        tensor.zero_()
    after = examples.batch(row_B, row_B)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_both_kinds_of_batches_read_every_row_once(tmp_path):
    arrays = make(tmp_path)
    examples = ClickExamples(ClickCorpus(tmp_path), "train")
    keys = sorted(arrays["categories"][:, 0].tolist())
    train = TrainBatches(examples, "f", 1, ROWS // 2, 5, 0, 1, seed=3)
    epoch = [batch for step in range(2) for batch in train.step(step * ROWS // 2)]
    assert sorted(key for batch in epoch for key in batch.categories_BC[:, 0].tolist()) == keys
    held = [batch for process in range(2) for batch in ValidationBatches(examples, 8, process, 2)]
    counted = [batch.categories_BC[batch.targets_B != IGNORED_TARGET, 0] for batch in held]
    assert sorted(torch.cat(counted).tolist()) == keys


def test_an_empty_split_is_refused(tmp_path):
    make(tmp_path)
    with pytest.raises(DataError, match=r"'valid'.* has no row"):
        ClickExamples(ClickCorpus(tmp_path), "valid")


def auc_of_all_pairs(scores, labels):
    pairs = [(a, b) for a, la in zip(scores, labels, strict=True) for b, lb in zip(scores, labels, strict=True)
             if la == 1 and lb == 0]  # fmt: skip
    return sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs)


@given(st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([0, 1, IGNORED_TARGET])), max_size=30))
def test_auc_counts_pairs_and_ties_by_half(rows):
    rows = [*rows, (0, 0), (1, 1)]
    scores, labels = np.array([score / 3 for score, _ in rows]), np.array([label for _, label in rows])
    wanted = auc_of_all_pairs(scores, labels)
    assert auc(scores, labels) == pytest.approx(wanted, abs=1e-12)
    assert auc(torch.tensor(scores), torch.tensor(labels)) == pytest.approx(wanted, abs=1e-12)
    assert auc(torch.tensor(scores).bfloat16(), torch.tensor(labels)) == pytest.approx(wanted, abs=1e-12)


def test_auc_is_of_the_order_of_scores_alone():
    random = np.random.default_rng(0)
    scores, labels = random.standard_normal(500), random.integers(0, 2, 500)
    assert auc(np.exp(5 * scores), labels) == pytest.approx(auc(scores, labels), abs=1e-12)
    assert auc(scores, 1 - labels) == pytest.approx(1 - auc(scores, labels), abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "labels"), [([], []), ([0.5, 0.1], [1, 1]), ([0.5, 0.1], [0, -100]), ([math.nan, 0.1], [0, 1])]
)
def test_auc_without_both_classes_or_with_nan_is_nan(scores, labels):
    assert math.isnan(auc(np.array(scores), np.array(labels)))
