"""Rows of prompts and answers: every example once and whole, and answers alone are targets."""

import shutil

import numpy as np
import pytest
import torch
from support import TINY, VOCAB, make_answers, with_manifest
from torch.nn import functional as F

from comera_dist.config.reader import read_config
from comera_dist.data.answers import AnswerCorpus, PackedAnswers, first_examples
from comera_dist.data.batches import FILLER
from comera_dist.data.open_text import open_text
from comera_dist.data.shards import Corpus
from comera_dist.data.tasks import open_task
from comera_dist.errors import ConfigError, DataError
from comera_dist.models.family import build_model, plan_model
from comera_dist.ops.targets import IGNORED_TARGET

SEPARATE = "data.documents=separate"
EOS = 0  # of the generated data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_answers(tmp_path_factory.mktemp("answers") / "generated")


@pytest.fixture(scope="module")
def corpus(folder):
    return AnswerCorpus(folder)


def examples(corpus, split):
    """(prompt, answer) of each example as lists of ids."""
    tokens, found, start = corpus.split(split)["tokens"].tolist(), [], 0
    for prompt_end, answer_end in zip(*corpus.ends(split), strict=True):
        found.append((tokens[start:prompt_end], tokens[prompt_end:answer_end]))
        start = answer_end
    return found


def slow_rows(examples, seq_len):
    """Inputs and targets of all rows."""
    rows, inputs, targets = [], [], []
    for prompt, answer in examples:
        if len(inputs) + 1 + len(prompt) + len(answer) > seq_len:
            rows.append((inputs, targets))
            inputs, targets = [], []
        inputs = [*inputs, EOS, *prompt, *answer]
        targets = [*targets, *([IGNORED_TARGET] * len(prompt)), *answer, EOS]
    rows.append((inputs, targets))

    def filled(ids, filler):
        return ids + [filler] * (seq_len - len(ids))

    return [(filled(inputs, EOS), filled(targets, IGNORED_TARGET)) for inputs, targets in rows]


@pytest.mark.parametrize("seq_len", [14, 16, 40, 3000])
@pytest.mark.parametrize("split", ["train", "valid"])
def test_rows_are_those_of_the_definition(corpus, split, seq_len):
    rows, expected = PackedAnswers(corpus, split, seq_len), slow_rows(examples(corpus, split), seq_len)
    assert len(rows) == len(expected)
    row_B = np.arange(len(rows))
    inputs_BS, starts_BS, targets_BS = rows.batch(row_B, row_B)
    assert inputs_BS.tolist() == [inputs for inputs, _ in expected]
    assert targets_BS.tolist() == [targets for _, targets in expected]
    assert (targets_BS != IGNORED_TARGET).sum() == corpus.counts[split].targets
    ends = [max(i for i in range(place + 1) if row[i] == EOS) for row, _ in expected for place in range(seq_len)]
    assert starts_BS.flatten().tolist() == ends


def test_a_row_holds_as_many_examples_as_fit():
    assert first_examples(np.array([3, 3, 4, 10, 1]), 10) == [0, 3, 4, 5]
    assert first_examples(np.array([10]), 10) == [0, 1]


def test_a_row_that_fills_up_a_batch_has_no_target(corpus):
    batch = PackedAnswers(corpus, "valid", 16).batch(np.array([0, FILLER]), np.array([0, FILLER]))
    assert (batch.targets_BS[0] != IGNORED_TARGET).any()
    assert (batch.targets_BS[1] == IGNORED_TARGET).all()


def test_loss_and_gradients_are_those_of_each_answer_alone(folder):
    """The oracle reads each example by itself and takes the loss of its answer; prompts have no loss."""
    config = read_config(None, [*TINY, f"data.corpus={folder}", SEPARATE, "data.seq_len=32"])
    task = open_task(config)
    model = build_model(config.model, plan_model(config, task.facts), torch.Generator().manual_seed(0))
    for parameter in model.parameters():  # the start is nearly linear in the residual stream: make attention matter
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2))
    rows, parameters = task.train(), list(model.parameters())
    row_B = np.arange(4)
    loss, expected = model(*rows.batch(row_B, row_B)), torch.zeros(())
    kept = [example for row in row_B for example in rows.examples(int(row))]
    assert len(kept) > len(row_B)
    for prompt, answer in examples(AnswerCorpus(folder), "train")[: len(kept)]:
        logits_SV = model(torch.tensor([[EOS, *prompt, *answer]]))[0]
        expected = expected + F.cross_entropy(logits_SV[len(prompt) :], torch.tensor([*answer, EOS]), reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    pairs = zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True)
    for ours, oracle in pairs:
        torch.testing.assert_close(ours, oracle, rtol=1e-3, atol=1e-5)


def test_targets_of_prompts_have_no_gradient(folder):
    config = read_config(None, [*TINY, f"data.corpus={folder}", SEPARATE])
    task = open_task(config)
    model = build_model(config.model, plan_model(config, task.facts), torch.Generator().manual_seed(0))
    hidden = []
    model.model.norm.register_forward_hook(lambda norm, inputs, output: hidden.append(output))
    batch = task.train().batch(np.arange(3), np.arange(3))
    (gradient_BSD,) = torch.autograd.grad(model(*batch), hidden)
    has_gradient_BS = (gradient_BSD != 0).any(-1)
    assert torch.equal(has_gradient_BS, batch.targets_BS != IGNORED_TARGET)


def test_examples_longer_than_a_row_are_refused(corpus):
    with pytest.raises(
        DataError, match=r"examples of .* are longer than data.seq_len = 8, the longest takes 14 tokens"
    ):
        PackedAnswers(corpus, "train", 8)


def test_joined_examples_are_refused(folder):
    with pytest.raises(ConfigError, match=r"set data\.documents=separate"):
        open_task(read_config(None, [*TINY, f"data.corpus={folder}"]))


def test_figures_count_answers_alone(folder, corpus):
    task, counts = open_task(read_config(None, [*TINY, f"data.corpus={folder}", SEPARATE])), corpus.counts["valid"]
    figures = task.figures({"loss": 2.0 * counts.targets, "targets": counts.targets}, "valid")
    assert figures["loss"] == 2.0
    assert figures["bits_per_byte"] == pytest.approx(2.0 * counts.targets / counts.bytes / np.log(2))


def test_data_are_opened_by_their_kind(folder, tiny_corpus):
    assert isinstance(open_text(folder), AnswerCorpus)
    assert isinstance(open_text(tiny_corpus), Corpus)
    with pytest.raises(DataError, match="there is no data set"):
        open_text(folder / "nothing")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"template": "{prompt}"}, "does not hold {prompt} once"),
        ({"eos_id": VOCAB}, "is not below vocab_size"),
        ({"vocab_size": 5}, "token .* knows 5"),
        ({"counts": {}}, "counts.train is missing"),
        ({"counts": None}, "counts is missing"),
    ],
)
def test_a_damaged_manifest_is_one_sentence(folder, tmp_path, changes, sentence):
    copy = with_manifest(folder, tmp_path / "copy", **changes)
    with pytest.raises(DataError, match=sentence):
        PackedAnswers(AnswerCorpus(copy), "train", 16).batch(np.arange(4), np.arange(4))


@pytest.mark.parametrize(("column", "value"), [("prompt_end", 10**6), ("answer_end", 0), ("answer_end", 10**9)])
def test_damaged_ends_are_one_sentence(folder, tmp_path, column, value):
    shutil.copytree(folder, tmp_path / "copy")
    places = np.memmap(tmp_path / f"copy/train/{column}.bin", dtype="<i8", mode="r+")
    places[3] = value
    places.flush()
    with pytest.raises(DataError, match=r"ends prompt and answer of example [34] at"):
        PackedAnswers(AnswerCorpus(tmp_path / "copy"), "train", 16)
