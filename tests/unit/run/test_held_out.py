"""The figures of a mixture on held-out rows: of each corpus, and their means in the shares of training."""

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from comera_dist.data.batches import FILLER
from comera_dist.data.mixture import Mixture
from comera_dist.data.windows import TextBatch
from comera_dist.ops.targets import IGNORED_TARGET
from comera_dist.run.held_out import HeldOut
from comera_dist.runtime.forward import measure
from comera_dist.runtime.processes import alone

LOSSES, ROWS, SHARES = {"a": 2.0, "b": 5.0}, {"a": 6, "b": 40}, (Fraction(3, 4), Fraction(1, 4))


class Rows:
    """Rows of one target, the number of their corpus."""

    def __init__(self, name):
        self._name = name

    def __len__(self):
        return ROWS[self._name]

    def batch(self, row_B, draw_B):
        inputs_B1 = torch.full((len(row_B), 1), sorted(ROWS).index(self._name))
        return TextBatch(inputs_B1, torch.from_numpy(np.where(row_B == FILLER, IGNORED_TARGET, 1))[:, None])


def task(name, **figures):
    return SimpleNamespace(
        held_out=lambda split: Rows(name),
        figures=lambda measured, split: {"loss": measured["loss"] / measured["targets"], **figures},
        facts=None,
        fingerprint=name,
        vocabulary={},
        contents=SimpleNamespace(sha256={}, remedy=""),
    )


def model(inputs_B1, targets_B1):
    """The loss of each target is that of its corpus."""
    losses = torch.tensor(list(LOSSES.values()))[inputs_B1]
    return {"loss": (losses * (targets_B1 != IGNORED_TARGET)).sum()}


def judged(task, max_rows=None):
    return HeldOut(task, "valid", 4, alone(), max_rows).figures(lambda batches: measure(model, batches, alone()))


def test_a_mixture_is_judged_by_its_shares_and_each_corpus_by_itself():
    figures, targets = judged(Mixture({"a": task("a", auc=0.5), "b": task("b", auc=0.9)}, SHARES))
    assert figures == pytest.approx({"loss": 2.75, "auc": 0.6, "loss/a": 2, "auc/a": 0.5, "loss/b": 5, "auc/b": 0.9})
    assert list(figures)[:2] == ["loss", "auc"]
    assert targets == 46


def test_a_figure_that_a_corpus_does_not_have_has_no_mean():
    figures, _ = judged(Mixture({"a": task("a", auc=None), "b": task("b", auc=0.9)}, SHARES))
    assert (figures["auc"], figures["auc/a"], figures["auc/b"]) == (None, None, 0.9)


@pytest.mark.parametrize(("max_rows", "targets"), [(8, 6 + 2), (4, 3 + 1), (1, 1 + 1), (100, 6 + 25), (None, 46)])
def test_the_most_rows_are_shared_out_and_each_corpus_has_one(max_rows, targets):
    assert judged(Mixture({"a": task("a"), "b": task("b")}, SHARES), max_rows)[1] == targets


def test_shares_are_exact():
    """A hundred times 0.29 is less than 29 as a number of floating point."""
    tasks = {"a": task("b"), "b": task("b")}
    expected = judged(task("b"), 29)[1] + judged(task("b"), 71)[1]
    assert judged(Mixture(tasks, [Fraction(29, 100), Fraction(71, 100)]), 100)[1] == expected


def test_a_single_corpus_has_no_names():
    assert judged(task("b", auc=0.5)) == ({"loss": 5.0, "auc": 0.5}, 40)
