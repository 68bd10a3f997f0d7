"""A kind of model from outside of the package: one object, one line of registration, and the trainer takes it."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from support import ROOT, environment, losses, make_pairs, metrics, saved_tensors
from torch import nn
from torch.nn import functional as F

from comera_dist.config.fields import Positive, Section
from comera_dist.config.model_section import FormatName, ModelSection
from comera_dist.config.reader import read_config
from comera_dist.config.registry import KINDS
from comera_dist.costs.estimate import estimate
from comera_dist.costs.oversize import oversize_line
from comera_dist.costs.step_costs import step_costs
from comera_dist.data.pairs import LabelledPairs, PairCorpus
from comera_dist.data.special_tokens import PADDING
from comera_dist.data.tasks import open_task
from comera_dist.data.vocabulary import text_vocabulary
from comera_dist.errors import ConfigError
from comera_dist.formats.plan import check_rules, plan_embedding, plan_linear
from comera_dist.models.base import Kind, WritesText
from comera_dist.models.family import build_model, plan_model
from comera_dist.ops.targets import IGNORED_TARGET

# The kind: it classifies pairs by the mean vector of their first text.

CLASSES = 3


class BagFormats(Section):
    """How the table and the matrix are stored."""

    embedding: FormatName = "tensor"
    mlp: FormatName = "tensor"


class BagConfig(ModelSection):
    """The keys of `model`."""

    kind: Literal["bag"] = "bag"
    width: Positive = 16
    format: BagFormats = BagFormats()


@dataclass(frozen=True)
class BagFacts:
    vocab_size: int


class FirstTokens(LabelledPairs):
    """Pairs whose target says in which third of the vocabulary their first token lies."""

    def batch(self, row_B, draw_B):
        batch = super().batch(row_B, draw_B)
        third_B = batch.tokens_BS[:, 1] * CLASSES // self._corpus.vocab_size
        return batch._replace(targets_B=torch.where(batch.targets_B == IGNORED_TARGET, IGNORED_TARGET, third_B))


class BagTask:
    """Predicts the thirds of `FirstTokens`."""

    def __init__(self, config):
        self._corpus, self._seq_len = PairCorpus(config.data.corpus), config.data.seq_len
        self.facts = BagFacts(self._corpus.vocab_size)
        self.fingerprint, self.contents = self._corpus.fingerprint, self._corpus.contents
        self.vocabulary = text_vocabulary(self._corpus.manifest)

    def train(self):
        return self.held_out("train")

    def held_out(self, name):
        return FirstTokens(self._corpus, name, self._seq_len)

    def figures(self, measured, name):
        return {"loss": measured["loss"] / measured["targets"], "accuracy": measured["correct"] / measured["targets"]}


class Bag(nn.Module):
    """Shapes: B batch, S sequence, D width, C classes."""

    def __init__(self, plan, generator):
        super().__init__()
        self.plan = plan
        self.words = plan["words"].build(1.0, generator)
        self.hidden = plan["hidden"].build(plan["hidden"].inputs ** -0.5, generator, bias=True)
        self.output = plan["output"].build(0.1, generator, bias=True)

    def forward(self, tokens_BS, token_types_BS, targets_B=None):
        keep_BS1 = ((tokens_BS != PADDING) & (token_types_BS == 0))[..., None]
        mean_BD = (self.words(tokens_BS) * keep_BS1).sum(1) / keep_BS1.sum(1).clamp_min(1)
        logits_BC = self.output(F.relu(self.hidden(mean_BD))).float()
        if targets_B is None:
            return logits_BC
        return F.cross_entropy(logits_BC, targets_B, ignore_index=IGNORED_TARGET, reduction="sum")

    def measure(self, tokens_BS, token_types_BS, targets_B):
        logits_BC = self(tokens_BS, token_types_BS)
        loss = F.cross_entropy(logits_BC, targets_B, ignore_index=IGNORED_TARGET, reduction="sum")
        return {"loss": loss, "correct": (logits_BC.argmax(-1) == targets_B).sum()}


class BagKind(Kind[BagFacts]):
    section = BagConfig
    without_data = "name a corpus of pairs"
    has_biases = True

    def plan(self, config, facts):
        width, formats = config.model.width, config.model.format
        plan = {
            "words": plan_embedding(config, "words", formats.embedding, facts.vocab_size, width),
            "hidden": plan_linear(config, "hidden", formats.mlp, width, width),
            "output": plan_linear(config, "output", "dense", width, CLASSES),
        }
        check_rules(config, plan)
        return plan

    def build(self, section, plan, generator):
        return Bag(plan, generator)

    def open_task(self, config):
        return BagTask(config)

    def format_key(self, name):
        return "embedding" if name == "words" else "mlp"


# Its tests.

RUN = [
    *["model.kind=bag", "data.seq_len=16", "train.batch_size=32", "train.steps=32", "optim.lr=0.05"],
    *["tensor.order=2", "tensor.rank=8", "tensor.embedding_order=2", "tensor.embedding_rank=8"],
    *["log.every=1", "eval.every=0", "wandb.mode=disabled"],
]
CUT = ["ranks.adapt=true", "ranks.sync_every=4", "ranks.late_start=0.2", "ranks.late_end=0.5"]
CUT += ["ranks.target_fraction=0.7"]


@pytest.fixture
def bag():
    KINDS.add("bag", BagKind())
    yield
    KINDS.remove("bag")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Directory of runs of the new kind: `straight`, and `stopped`, which two starts have trained."""
    directory = tmp_path_factory.mktemp("new_kind")
    own = [*RUN, f"data.corpus={make_pairs(directory / 'pairs')}", f"run.directory={directory}"]
    starts = [
        [*own, "run.name=straight", *CUT],
        [*own, "run.name=stopped", "train.steps=9", "schedule.kind=constant"],
        [*own, "run.name=stopped", "train.steps=18", "schedule.kind=constant"],
    ]
    command = [sys.executable, __file__, json.dumps(starts)]
    path = f"{ROOT}:{ROOT / 'tests'}"
    ended = subprocess.run(command, env=environment(PYTHONPATH=path), capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return directory


def test_a_kind_from_outside_learns_and_its_ranks_are_cut(runs):
    found = losses(runs, "straight")
    assert len(found) == 32
    assert sum(found[-4:]) < 0.8 * sum(found[:4])
    summary = json.loads((runs / "straight/summary.json").read_text())
    assert {"val_loss", "val_accuracy"} <= set(summary)
    assert summary["params"] < metrics(runs, "straight")[0]["params"]
    assert set(summary["ranks"]) == {"words", "hidden"}


def test_a_kind_from_outside_goes_on_from_its_checkpoint(runs):
    assert [record["step"] for record in metrics(runs, "stopped")] == list(range(1, 19))
    assert any(name.endswith("hidden.bias") for name in saved_tensors(runs, "stopped", 18))


def test_costs_of_a_kind_from_outside_are_those_of_its_model(bag, tmp_path):
    config = read_config(None, [*RUN, f"data.corpus={make_pairs(tmp_path / 'pairs', rows=20)}"])
    facts = open_task(config).facts
    plan = plan_model(config, facts)
    model, figures = build_model(config.model, plan, torch.Generator().manual_seed(0)), estimate(config, plan, 1, 512)
    assert figures.params == sum(p.numel() for p in model.parameters())
    assert [cost.name for cost in step_costs(config, plan, 512, "cpu")] == list(plan)
    wide = read_config(None, [*RUN, "tensor.rank=64", "tensor.outer_rank=64", "tensor.embedding_rank=64"])
    line = oversize_line(wide, plan_model(wide, facts))
    assert re.findall(r"model\.format\.\w+=dense", line) == ["model.format.mlp=dense"]
    assert not isinstance(model, WritesText)


def test_the_keys_of_a_kind_are_known_while_it_is_there(bag):
    with pytest.raises(ConfigError, match=r"model.witdh is not a known key; did you mean model.width\?"):
        read_config(None, [*RUN, "model.witdh=3"])
    with pytest.raises(ConfigError, match=r"model.kind = bag is taken"):
        KINDS.add("bag", BagKind())


def test_the_keys_of_a_kind_are_unknown_without_it():
    with pytest.raises(
        ConfigError, match=r"model.kind = 'bag' is not possible: expected one of decoder, encoder, dlrm"
    ):
        read_config(None, RUN)


def _train(starts: list[list[str]]) -> int:
    from comera_dist.run.train import train
    from comera_dist.runtime.processes import leave, start_processes

    KINDS.add("bag", BagKind())
    processes = start_processes(timeout_seconds=120)
    leave(processes, max(train(read_config(None, overrides), processes) for overrides in starts))


if __name__ == "__main__":
    torch.set_num_threads(1)
    _train(json.loads(sys.argv[1]))
