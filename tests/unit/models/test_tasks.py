"""The batches, facts and figures of each kind of task."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support import CLICK_TABLES, TINY, VOCAB, WORKLOADS, make_clicks, make_pairs

from comera_dist.config.reader import read_config
from comera_dist.data.batches import FILLER
from comera_dist.data.clicks import ClickBatch
from comera_dist.data.masking import MaskedBatch
from comera_dist.data.pairs import PairBatch
from comera_dist.data.tasks import open_task
from comera_dist.data.windows import TextBatch
from comera_dist.errors import ConfigError, DataError
from comera_dist.models.decoder.plan import DecoderFacts
from comera_dist.models.dlrm.plan import DLRMFacts
from comera_dist.models.encoder.plan import EncoderFacts
from comera_dist.ops.targets import IGNORED_TARGET
from comera_dist.report.judgement_tables import show_evaluation
from comera_dist.report.lines import summary_lines

RUNS = {"decoder": TINY, **WORKLOADS}
PAIR_VOCAB = VOCAB + 4
FACTS = {
    "decoder": DecoderFacts(VOCAB),
    "masked_lm": EncoderFacts(PAIR_VOCAB, classes=3),
    "classifier": EncoderFacts(PAIR_VOCAB, classes=3),
    "dlrm": DLRMFacts(dense_features=2, table_rows=tuple(CLICK_TABLES)),
}
BATCHES = {"decoder": TextBatch, "masked_lm": MaskedBatch, "classifier": PairBatch, "dlrm": ClickBatch}
ROWS = np.arange(6)


@pytest.fixture(scope="module")
def corpora(tiny_corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    pairs, clicks = make_pairs(folder / "pairs", rows=40), make_clicks(folder / "clicks", rows=50)
    return {"decoder": tiny_corpus, "masked_lm": pairs, "classifier": pairs, "dlrm": clicks}


@pytest.fixture
def task_of(corpora):
    def build(kind, *overrides, corpus=None):
        return open_task(read_config(None, [*RUNS[kind], f"data.corpus={corpus or corpora[kind]}", *overrides]))

    return build


@pytest.fixture
def unlabelled(corpora, tmp_path):
    folder = shutil.copytree(corpora["classifier"], tmp_path / "unlabelled")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"labels": []}))
    return folder


@pytest.mark.parametrize("kind", RUNS)
def test_each_kind_of_model_reads_batches_and_facts_of_its_own_kind(task_of, kind):
    task = task_of(kind)
    assert task.facts == FACTS[kind]
    assert len(task.fingerprint) >= 32
    for examples in (task.train(), task.held_out("valid")):
        batch = examples.batch(ROWS, ROWS)
        assert type(batch) is BATCHES[kind]
        assert {len(tensor) for tensor in batch} == {len(ROWS)}
        assert (batch[-1] != IGNORED_TARGET).any()
    with pytest.raises(DataError, match="has no split 'test'; it has train, valid"):
        task.held_out("test")


@pytest.mark.parametrize(
    ("kind", "override", "facts"),
    [
        ("masked_lm", "model.vocab_size=100", {"vocab_size": 100}),
        ("classifier", f"model.vocab_size={PAIR_VOCAB}", {}),
        ("classifier", "model.classes=5", {"classes": 5}),
        ("dlrm", "model.table_rows=[60,8,1000]", {"table_rows": (60, 8, 1000)}),
        ("dlrm", "model.dense_features=2", {}),
    ],
)
def test_a_model_may_be_made_for_more_than_the_data_hold(task_of, kind, override, facts):
    assert vars(task_of(kind, override).facts) == vars(FACTS[kind]) | facts


@pytest.mark.parametrize(
    ("kind", "override", "sentence"),
    [
        ("masked_lm", "model.vocab_size=67", "model.vocab_size = 67 and the data have 68; set it to 68 or more"),
        ("classifier", "model.classes=2", "model.classes = 2 and the data have 3; set it to 3 or more, or remove it"),
        ("dlrm", "model.table_rows=[60,6,48]", "model.table_rows[1] = 6 and the data have 7; set it to 7 or more"),
        ("dlrm", "model.table_rows=[60,7]", "the length of model.table_rows = 2 and the data have 3; set it to 3"),
        ("dlrm", "model.dense_features=3", "model.dense_features = 3 and the data have 2; set it to 2, or remove it"),
    ],
)
def test_a_model_that_is_too_small_for_the_data_is_refused(task_of, kind, override, sentence):
    with pytest.raises(ConfigError) as caught:
        task_of(kind, override)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "other", "sentence"),
    [
        ("dlrm", "decoder", "holds text, and this model reads clicks"),
        ("masked_lm", "dlrm", "holds clicks, and this model reads pairs"),
        ("classifier", "decoder", "holds text, and this model reads pairs"),
        ("decoder", "dlrm", "holds clicks, and this model reads text"),
    ],
)
def test_data_of_another_kind_are_refused(task_of, corpora, kind, other, sentence):
    with pytest.raises(DataError, match=sentence):
        task_of(kind, corpus=corpora[other])


@pytest.mark.parametrize("more", [[], ["model.classes=3"]])
def test_without_labels_there_is_nothing_to_classify_and_words_to_hide(task_of, unlabelled, more):
    with pytest.raises(DataError, match=r"has no labels, .*; prepare pairs with --label-key, or set model.head=masked"):
        task_of("classifier", *more, corpus=unlabelled)
    assert task_of("masked_lm", corpus=unlabelled).facts == EncoderFacts(PAIR_VOCAB)


@pytest.fixture
def partly_labelled(corpora, tmp_path):
    """Pairs without labels in even rows of train and in all rows of valid."""
    folder = shutil.copytree(corpora["classifier"], tmp_path / "partly")
    for split, rows in (("train", slice(None, None, 2)), ("valid", slice(None))):
        labels = np.fromfile(folder / split / "labels.bin", dtype="<i2")
        labels[rows] = -1
        labels.tofile(folder / split / "labels.bin")
    return folder


def test_pairs_without_a_label_are_not_classified(task_of, partly_labelled):
    """A batch of them alone would have no loss."""
    found, whole = task_of("classifier", corpus=partly_labelled).train(), task_of("classifier").train()
    assert (len(found), len(whole)) == (20, 40)
    row_B = np.array([0, FILLER, 19, 3])
    batch, expected = found.batch(row_B, row_B), whole.batch(np.array([1, FILLER, 39, 7]), row_B)
    assert all(map(torch.equal, batch, expected))
    assert len(task_of("masked_lm", corpus=partly_labelled).train()) == 40
    with pytest.raises(DataError, match=r"no pair of split 'valid' of .* has a label; prepare labelled pairs"):
        task_of("classifier", corpus=partly_labelled).held_out("valid")


def test_held_out_words_are_hidden_alike_for_all_seeds_and_those_to_learn_from_are_not(task_of):
    first, second = (task_of("masked_lm", f"run.seed={seed}") for seed in (1, 2))
    for name in ("valid", "train"):
        held_out = [task.held_out(name).batch(ROWS, ROWS) for task in (first, second)]
        assert all(map(torch.equal, *held_out))
    learnt = [task.train().batch(ROWS, ROWS) for task in (first, second)]
    assert not torch.equal(learnt[0].positions_BP, learnt[1].positions_BP)
    assert all(map(torch.equal, first.train().batch(ROWS, ROWS), learnt[0]))


def test_figures_of_text_are_nats_per_token_and_bits_per_byte(task_of):
    # The generated corpus has 3 bytes a token.
    found = task_of("decoder").figures({"loss": 60.0, "targets": 20.0}, "valid")
    assert found == {"loss": 3.0, "bits_per_byte": pytest.approx(3.0 / math.log(2) / 3)}


@pytest.mark.parametrize("kind", ["masked_lm", "classifier"])
def test_figures_of_pairs_are_means_over_targets(task_of, kind):
    found = task_of(kind).figures({"loss": 30.0, "correct": 5.0, "targets": 20.0}, "valid")
    assert found == {"loss": 1.5, "accuracy": 0.25}


def test_figures_of_clicks_rank_all_rows_that_count(task_of):
    scores, labels = torch.tensor([0.1, 0.9, 0.4, 0.3, 7.0]), torch.tensor([0, 1, 0, 1, IGNORED_TARGET])
    measured = {"loss": 2.0, "correct": 3.0, "targets": 4.0, "scores": scores, "labels": labels}
    # Of four pairs of a clicked row and one that was not, one is in the wrong order.
    assert task_of("dlrm").figures(measured, "valid") == {"loss": 0.5, "accuracy": 0.75, "auc": 0.75}


def test_rows_of_one_label_have_no_auc(task_of, capsys):
    labels = torch.tensor([1, 1, IGNORED_TARGET])
    measured = {"loss": 2.0, "correct": 1.0, "targets": 2.0, "scores": torch.tensor([0.1, 0.9, 7.0]), "labels": labels}
    figures = task_of("dlrm").figures(measured, "valid")
    assert figures == {"loss": 1.0, "accuracy": 0.5, "auc": None}
    show_evaluation({"run": "r", "step": 1, "corpus": "c", "split": "valid", "targets": 2, **figures})
    assert "undefined, all rows have one label" in capsys.readouterr().out
    summary = {f"val_{name}": figure for name, figure in figures.items()}
    summary |= {"tokens": 8, "wall_seconds": 1, "params": 2, "dense_params": 4, "compression": 2.0}
    assert "accuracy 0.5000, auc undefined, all rows have one label)" in summary_lines(summary, Path("runs/x"))
