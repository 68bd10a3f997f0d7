"""Proposals against all widths one by one, and the command that prints them."""

import json
import math

import pytest
from support import ROOT

from comera_dist.commands import design
from comera_dist.config.reader import read_config
from comera_dist.config.tensor_section import Budget
from comera_dist.costs.of_run import estimate, plan_run
from comera_dist.design.loss_fit import Features, LossFit
from comera_dist.design.proposals import Task, features, propose
from comera_dist.errors import ConfigError
from comera_dist.models.base import IN_BLOCK

VOCAB, TOKENS = 512, 1_000_000
BASE = ["model.d_model=64", "model.d_ff=176", "train.steps=100", "data.corpus=none"]


def wider_is_better(model):
    return 9 - 0.3 * math.log(model.width) - 0.1 * math.log(model.layers) - 0.01 * math.log(model.matrices)


MODELS = tuple(
    Features(1000 * width * layers, width, layers, 77 * width + layers, TOKENS, format)
    for width in (16, 48, 80)
    for layers in (2, 4)
    for format in ("dense", "block_train", "shared")
)
FIT = LossFit("made-up data", MODELS, tuple(map(wider_is_better, MODELS)))


def read(overrides):
    return read_config(None, [*BASE, *overrides])


def proposals(**limits):
    return propose(read, Task(Budget(**limits), TOKENS, VOCAB), FIT)


@pytest.mark.parametrize(
    ("key", "figure", "limit"),
    [
        ("parameters", "params", 150_000),
        ("flops_per_token", "flops_per_token", 900_000),
        ("state_bytes", "state_bytes_per_process", 2_000_000),
    ],
)
def test_each_proposal_is_the_widest_of_its_form(key, figure, limit):
    found = proposals(**{key: limit})
    assert [p.expected.loss for p in found] == sorted(p.expected.loss for p in found)
    assert {p.config.model.layers for p in found} == {2, 4}
    assert {p.is_dense for p in found} == {True, False}
    for proposal in found:
        assert getattr(proposal.costs, figure) <= limit
        assert proposal.config == read(proposal.overrides)
    dense = next(p for p in found if p.is_dense and p.config.model.layers == 2)
    for width in range(dense.config.model.d_model + 8, 8 * 40, 8):
        sizes = [f"model.d_model={width}", f"model.d_ff={max(8, 176 * width // 64 // 8 * 8)}", "model.layers=2"]
        config = read([*sizes, "model.format=dense", "model.tie_embeddings=true"])
        assert getattr(estimate(config, vocab_size=VOCAB), figure) > limit


@pytest.mark.parametrize("limit", [270_000, 310_000, 330_000])
def test_a_block_train_is_the_widest_although_its_costs_do_not_grow_with_the_width(limit):
    """A wider one may have blocks that multiply faster, so bisection alone stops too early."""
    (found,) = (
        p
        for p in proposals(flops_per_token=limit)
        if p.config.model.layers == 4
        and p.config.model.format.mlp == "block_train"
        and p.config.tensor.block_train.rank == 2
        and p.config.model.format.embedding == "dense"
    )
    width, fitting = found.config.model.d_model, []
    for tried in range(8, 2 * width, 8):
        sizes = [f"model.d_model={tried}", f"model.d_ff={max(8, 176 * tried // 64 // 8 * 8)}"]
        config = read([*found.overrides, *sizes])
        fitting += [tried] * (estimate(config, vocab_size=VOCAB).flops_per_token <= limit)
    assert width == max(fitting)


def test_forms_that_the_configuration_excludes_are_left_out():
    """Muon steps matrices, which block trains do not have."""
    task = Task(Budget(parameters=150_000), TOKENS, VOCAB)
    found = propose(lambda overrides: read(["model.format=dense", *overrides, "optim.kind=muon"]), task, FIT)
    assert {p.config.model.format.mlp for p in found} == {"dense", "shared"}


def test_a_rule_for_a_block_excludes_models_without_it():
    rule = "tensor.layers=[{match: 'model.layers.3.*', format: dense}]"
    found = propose(lambda overrides: read([*overrides, rule]), Task(Budget(parameters=150_000), TOKENS, VOCAB), FIT)
    assert {p.config.model.layers for p in found} == {4}


def test_what_excludes_all_forms_is_one_sentence():
    def refuse(overrides):
        return read([*overrides, "run.seed=x"] if len(overrides) > 0 else overrides)

    with pytest.raises(ConfigError, match=r"run\.seed"):
        propose(refuse, Task(Budget(parameters=150_000), TOKENS, VOCAB), FIT)


def test_no_block_has_as_many_matrices_as_there_are_blocks():
    found = [p for p in proposals(parameters=150_000) if p.config.model.format.mlp == "shared"]
    assert {(p.config.model.layers, p.config.tensor.shared.matrices) for p in found} == {(2, 1), (4, 1), (4, 2)}


def test_all_limits_hold():
    found = proposals(parameters=150_000, flops_per_token=500_000)
    assert all(p.costs.params <= 150_000 and p.costs.flops_per_token <= 500_000 for p in found)


def test_features_count_every_stored_number_but_norms_and_gates():
    config = read(
        ["model.format={rest: block_train, embedding: low_rank, head: low_rank}", "model.tie_embeddings=true"]
    )
    plan = plan_run(config, VOCAB)
    found = features(config, plan, TOKENS)
    parts = estimate(config, vocab_size=VOCAB).parts
    assert found.matrices == parts["blocks: matrices"]
    assert found.vocabulary == parts["embed_tokens"]
    assert found.format == "block_train"
    assert found[1:3] == (64, 4)
    assert all(IN_BLOCK.search(name) for name, layer in plan.items() if layer.tag == "block_train")


def test_a_table_of_pairs_is_no_vocabulary():
    configs = [read([f"model.bigram_rows={rows}"]) for rows in ("null", "1000")]
    without, with_pairs = (features(config, plan_run(config, VOCAB), TOKENS) for config in configs)
    assert with_pairs == without


def test_an_impossible_budget_is_one_sentence():
    with pytest.raises(ConfigError, match="no model within 10 parameters was found; raise the budget"):
        proposals(parameters=10)


def command(monkeypatch, *arguments, config="quickstart", vocabulary=("--vocab-size", "4096")):
    path = ROOT / "configs" / f"{config}.yaml"
    monkeypatch.setattr("sys.argv", ["design", "--config", str(path), *vocabulary, *arguments])
    return design.main()


def test_the_command_prints_proposals_and_a_dense_one(monkeypatch, capsys):
    assert command(monkeypatch, "--params", "1000000", "--json") == 0
    records = json.loads(capsys.readouterr().out)
    assert any("model.format=dense" in record["overrides"] for record in records)
    assert all(record["params"] <= 1_000_000 and record["error"] > 0 for record in records)
    assert command(monkeypatch, "--flops", "1e13", "--tokens", "2000000") == 0
    table = capsys.readouterr().out
    assert "with 4,096 pieces" in table
    assert "dense" in table
    assert "The first: model.d_model=" in table
    assert "train.steps=null train.tokens=2000000\n" in table


def test_a_model_is_proposed_under_one_name():
    """A small vocabulary is dense under the name low_rank, too, where a lower rank would save nothing."""
    task = Task(Budget(parameters=100_000), TOKENS, 40)
    found = propose(read, task, FIT)
    plans = [tuple(proposal.plan.items()) for proposal in found]
    assert len(set(plans)) == len(plans)


def test_a_loss_above_that_of_guessing_is_not_known(monkeypatch, capsys):
    few = ("--params", "1e5", "--tokens", "2e4", "schedule.warmup_steps=0")
    assert command(monkeypatch, *few, "--json") == 0
    records = json.loads(capsys.readouterr().out)
    assert all(record["loss"] is None and record["error"] is None for record in records)
    assert command(monkeypatch, *few) == 0
    assert "not known" in capsys.readouterr().out


def test_the_vocabulary_is_that_of_the_corpus(monkeypatch, capsys, tiny_corpus):
    budget = (f"data.corpus={tiny_corpus}", "--params", "300000", "--json")
    assert command(monkeypatch, *budget, vocabulary=()) == 0
    first = json.loads(capsys.readouterr().out)[0]
    config = read_config(ROOT / "configs/quickstart.yaml", [f"data.corpus={tiny_corpus}", *first["overrides"]])
    assert estimate(config).params == first["params"]


def test_without_a_corpus_the_vocabulary_must_be_given(monkeypatch, capsys):
    assert command(monkeypatch, "--params", "300000", "data.corpus=absent", vocabulary=()) == 2
    assert capsys.readouterr().err.rstrip().endswith("give --vocab-size")


def test_other_kinds_of_models_are_refused(monkeypatch, capsys):
    assert command(monkeypatch, "--params", "300000", config="dlrm_adult") == 2
    assert "model.kind = dlrm was found, but this proposes decoders" in capsys.readouterr().err


def test_a_command_without_a_budget_ends_with_one_sentence(monkeypatch, capsys):
    assert command(monkeypatch) == 2
    assert capsys.readouterr().err == "ConfigError: no budget was given; give --params, --flops or --memory\n"


@pytest.mark.parametrize("flops", ["0", "-1", "nan", "inf", "1e30", "1e-40"])
def test_flops_that_no_training_takes_are_one_sentence(monkeypatch, capsys, flops):
    assert command(monkeypatch, f"--flops={flops}") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"ConfigError: --flops {float(flops):g} is ")
    assert "expected more than 0 and at most 1e+12; give those of the whole training" in said


def test_a_budget_beyond_every_number_is_one_sentence(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        command(monkeypatch, "--params", "9" * 30)
    assert f"argument --params: {'9' * 30} is not possible; give 1 or more, at most 1e+18" in capsys.readouterr().err


def test_two_dashes_are_not_a_value(monkeypatch, capsys):
    with pytest.raises(SystemExit) as stop:
        command(monkeypatch, "--params=--")
    assert stop.value.code == 2
    assert "argument --params: -- is not a value; name one" in capsys.readouterr().err
