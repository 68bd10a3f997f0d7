"""A mixture reads every corpus in an order of its own, in exact shares, whatever the number of processes."""

from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import yaml
from support import TINY, WORKLOADS, make_clicks, make_corpus, make_pairs, mixture_of, with_manifest

from comera_dist.config.data_section import Data
from comera_dist.config.reader import read_config
from comera_dist.costs.of_run import estimate
from comera_dist.data.batches import TrainBatches
from comera_dist.data.mixture import MixedExamples
from comera_dist.data.tasks import open_task
from comera_dist.errors import ConfigError, DataError
from comera_dist.ops.permutation import permute

SIZES, SHARES = (31, 7, 50), (Fraction(5, 10), Fraction(3, 10), Fraction(2, 10))
SEED, GLOBAL = 3, 12


class NumberedBatch(NamedTuple):
    part_B: torch.Tensor
    row_B: torch.Tensor
    draw_B: torch.Tensor


class Numbered:
    """Rows that say which they are."""

    def __init__(self, part, size):
        self._part, self._size = part, size

    def __len__(self):
        return self._size

    def batch(self, row_B, draw_B):
        assert ((row_B >= 0) & (row_B < self._size)).all()
        return NumberedBatch(*map(torch.from_numpy, (np.full(len(row_B), self._part), row_B, draw_B)))


def mixed(sizes=SIZES, shares=SHARES):
    return MixedExamples([Numbered(part, size) for part, size in enumerate(sizes)], shares)


def batches_of(process, count, micro_batch, examples=None):
    return TrainBatches(examples or mixed(), "f", 4, GLOBAL, micro_batch, process, count, SEED)


def read(steps, count=1, micro_batch=GLOBAL, examples=None):
    """(part, row, draw) of every row of these steps, in global order."""
    found = []
    for step in steps:
        shares = [batches_of(i, count, micro_batch, examples).step(step * GLOBAL) for i in range(count)]
        for batch in (batch for batches in zip(*shares, strict=True) for batch in batches):
            found += zip(*(tensor.tolist() for tensor in batch), strict=True)
    return found


def oracle(draws):
    """Row after row by the definition: the earliest deadline of the corpora whose next row may be read."""
    given, found = [0] * len(SIZES), []
    for draw in range(draws):
        ready = [i for i, share in enumerate(SHARES) if given[i] / share < draw + 1]
        part = min(ready, key=lambda i: (-(-(given[i] + 1) // SHARES[i]), i))
        epoch, position = divmod(given[part], SIZES[part])
        key = (SEED, epoch, part) if part else (SEED, epoch)
        row = int(permute(np.arange(SIZES[part]), SIZES[part], key)[position])
        found.append((part, row, draw))
        given[part] += 1
    return found


def test_rows_are_those_of_the_definition():
    assert read(range(20)) == oracle(20 * GLOBAL)


@pytest.mark.parametrize(("count", "micro_batch"), [(1, 4), (2, 6), (2, 1), (4, 3), (4, 1)])
def test_any_number_of_processes_reads_the_same_sequence(count, micro_batch):
    assert read(range(20), count, micro_batch) == oracle(20 * GLOBAL)


def test_every_epoch_of_each_corpus_reads_its_rows_once_in_a_new_order():
    rows = read(range(60))
    for part, size in enumerate(SIZES):
        own = [row for which, row, _ in rows if which == part]
        epochs = [own[first : first + size] for first in range(0, len(own) - size + 1, size)]
        assert len(epochs) >= 2
        assert all(sorted(epoch) == list(range(size)) for epoch in epochs)
        assert epochs[0] != epochs[1]


def test_shares_are_met_at_every_row():
    counts = [0, 0, 0]
    for place, (part, _, _) in enumerate(read(range(40)), start=1):
        counts[part] += 1
        assert all(abs(count - share * place) < 1 for count, share in zip(counts, SHARES, strict=True))


def test_a_step_far_ahead_is_that_of_the_shares():
    """No state is kept, so step 10**9 is read at once."""
    parts = [part for part, _, _ in read([10**9])]
    assert np.bincount(parts, minlength=3).tolist() == [6, 4, 2]
    assert parts == [part for part, _, _ in oracle(10 * GLOBAL)[:120]][:GLOBAL]  # 12·10**9 rows are whole periods


def test_the_first_corpus_is_read_as_it_would_be_alone():
    alone = read(range(10), examples=Numbered(0, SIZES[0]))
    assert [row for part, row, _ in read(range(20)) if part == 0] == [row for _, row, _ in alone][:120]
    assert read(range(9), examples=mixed((SIZES[0],), (Fraction(1),))) == alone[: 9 * GLOBAL]


@pytest.mark.parametrize("step", [0, 1, 7, 100])
def test_a_resume_goes_on_with_other_processes(step):
    cursor = batches_of(1, 4, 3).cursor(step * GLOBAL)
    given = [sum(part == which for which, _, _ in oracle(step * GLOBAL)) for part in range(3)]
    assert cursor.epoch == min(count // size for count, size in zip(given, SIZES, strict=True))
    assert batches_of(0, 2, 3).resume(cursor) == step * GLOBAL
    assert read(range(step, step + 2), 2, 3) == oracle((step + 2) * GLOBAL)[step * GLOBAL :]


def test_a_cursor_of_another_length_is_refused():
    with pytest.raises(DataError, match="not whole sequences of 5"):
        TrainBatches(mixed(), "f", 5, GLOBAL, 3, 0, 2, SEED).resume(batches_of(0, 1, 3).cursor(GLOBAL))


def opened(parts, overrides=TINY):
    return open_task(read_config(None, [*overrides, mixture_of(parts)]))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    return make_corpus(folder / "a"), make_corpus(folder / "b", train_tokens=900, valid_tokens=300)


def test_a_mixture_of_texts_has_the_rows_of_each(texts):
    a, b = texts
    task = opened({a: 0.75, b: 0.25})
    alone = [open_task(read_config(None, [*TINY, f"data.corpus={folder}"])) for folder in texts]
    assert (task.facts, task.vocabulary) == (alone[0].facts, alone[0].vocabulary)
    assert set(task.contents.sha256) == {file for one in alone for file in one.contents.sha256}
    assert [len(one.train()) for one in alone] == [374, 56]
    rows = np.array([0, 374 + 25, 373, 374, 1])
    batch = task.train().batch(rows, rows)
    for place, (part, row) in enumerate([(0, 0), (1, 25), (0, 373), (1, 0), (0, 1)]):
        one = alone[part].train().batch(np.array([row]), np.array([row]))
        assert torch.equal(batch.inputs_BS[place], one.inputs_BS[0])
        assert torch.equal(batch.targets_BS[place], one.targets_BS[0])


def test_the_fingerprint_knows_corpora_weights_and_their_order(texts):
    a, b = texts
    mixtures = [{a: 3, b: 1}, {a: 1, b: 1}, {b: 1, a: 3}, {a: 1}]
    fingerprints = [opened(parts).fingerprint for parts in mixtures]
    assert len(set(fingerprints)) == 4
    assert opened({a: 0.75, b: 0.25}).fingerprint == fingerprints[0]


def test_masked_words_of_a_mixture_are_functions_of_the_draw(tmp_path):
    a, b = make_pairs(tmp_path / "a", rows=20), make_pairs(tmp_path / "b", rows=30)
    task = opened({a: 0.5, b: 0.5}, WORKLOADS["masked_lm"])
    alone = open_task(read_config(None, [*WORKLOADS["masked_lm"], f"data.corpus={b}"]))
    batch = task.train().batch(np.array([3, 24]), np.array([100, 101]))
    assert all(
        torch.equal(ours[1], one[0])
        for ours, one in zip(batch, alone.train().batch(np.array([4]), np.array([101])), strict=True)
    )


@pytest.mark.parametrize("kind", ["classifier", "dlrm"])
def test_every_kind_of_model_reads_mixtures(tmp_path, kind):
    make = make_clicks if kind == "dlrm" else make_pairs
    parts = {make(tmp_path / name, rows=rows): rows for name, rows in (("a", 20), ("b", 40))}
    examples = opened(parts, WORKLOADS[kind]).train()
    assert len(examples) == 60
    rows = np.arange(0, 60, 7)
    assert all(len(tensor) == len(rows) for tensor in examples.batch(rows, rows))


def test_corpora_of_other_tokenizers_are_refused(texts, tmp_path):
    other = with_manifest(texts[1], tmp_path / "other", tokenizer=b"another")
    with pytest.raises(DataError, match="other differs in its tokenizer from a, and the corpora of"):
        opened({texts[0]: 1, other: 1})


def test_a_mixture_on_the_command_line_withdraws_the_corpus_of_the_file(tmp_path):
    (tmp_path / "own.yaml").write_text("data: {corpus: own}\n")
    overrides = ["train.steps=8", "ranks.adapt=false", "data.corpus=null"]
    mixed = read_config(tmp_path / "own.yaml", [*overrides, mixture_of({"a": 1, "b": 1})])
    assert mixed.data.folders == (Path("a"), Path("b"))
    assert read_config(tmp_path / "own.yaml", overrides).data == Data()


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["data.corpus=x", mixture_of({"a": 1, "b": 1})],
            "data.corpus = x and data.mixture = a + b are both set; keep one, or withdraw the other by "
            "data.corpus=null or data.mixture=[]",
        ),
        (
            [mixture_of({"one/a": 1, "two/a": 1})],
            "data.mixture has two corpora named a, whose figures could not be told apart; name each corpus once, and "
            "give folders different last names",
        ),
        (
            [mixture_of({"a": 0.1234567, "b": 1})],
            "the weights of data.mixture are met exactly only after more than 100,000 rows; round them, e.g. to "
            "hundredths that sum to 1",
        ),
        ([mixture_of({"a": 0})], "data.mixture.0.weight = 0 is not possible: input should be greater than 0"),
        (["data.mixture=[{corpus: a}]"], "data.mixture.0.weight = {'corpus': 'a'} is not possible: field required"),
        (["data.mixture=[{corpus: a, wieght: 1}]"], "data.mixture.0.wieght is not a known key; did you mean"),
        (["data.mixture=a"], "data.mixture = 'a' is not possible: input should be a valid tuple"),
    ],
)
def test_impossible_mixtures_are_refused(overrides, sentence):
    with pytest.raises(ConfigError) as caught:
        read_config(None, [*TINY, *overrides])
    assert any(line.startswith(sentence) for line in str(caught.value).splitlines()), caught.value


def test_weights_are_read_as_they_are_written():
    config = read_config(None, [*TINY, mixture_of({"a": 0.7, "b": 0.2, "c": 1e-1})])
    assert config.data.shares == (Fraction(7, 10), Fraction(2, 10), Fraction(1, 10))
    assert read_config(None, [*TINY, mixture_of({"a": 2, "b": 1})]).data.shares == (Fraction(2, 3), Fraction(1, 3))


def test_a_written_configuration_is_read_again(tmp_path):
    config = read_config(None, [*TINY, mixture_of({"a": 0.7, "b": 0.3})])
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    assert read_config(tmp_path / "config.yaml") == config


def test_a_mixture_is_estimated(texts):
    config = read_config(None, [*TINY, mixture_of({texts[0]: 1, texts[1]: 1})])
    assert estimate(config).params == estimate(read_config(None, [*TINY, f"data.corpus={texts[0]}"])).params
