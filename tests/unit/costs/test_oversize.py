"""A model that its tensor trains make larger is called so, with the layers and the remedy."""

import re

import pytest
from support import FACTS, TINY, WORKLOADS

from comera_dist.commands.estimate import main
from comera_dist.config.reader import read_config
from comera_dist.costs.estimate import estimate
from comera_dist.costs.oversize import oversize_line
from comera_dist.formats.dense import DensePlan
from comera_dist.models.family import kind_of, plan_model
from comera_dist.report.lines import size_beside_dense, step_line
from comera_dist.report.tables import show_estimate, show_layers

KINDS = {"decoder": TINY, **WORKLOADS}
WIDE = ["tensor.rank=64", "tensor.outer_rank=64"]  # more than the 16 features of a layer have


def planned(kind, *overrides):
    config = read_config(None, [*KINDS[kind], *overrides])
    return config, plan_model(config, FACTS)


@pytest.mark.parametrize(
    ("compression", "words"),
    [
        (4.494, "4.49× smaller"),
        (0.8, "1.25× larger than dense"),
        (1.001, "as large as dense"),
        (1, "as large as dense"),
    ],
)
def test_a_size_is_said_in_the_direction_that_it_has(compression, words):
    assert size_beside_dense(compression) == words


def test_no_output_calls_a_larger_model_smaller(capsys):
    config, plan = planned("decoder", *WIDE, "tensor.embedding_rank=64")
    figures = estimate(config, plan, 1, 128)
    assert figures.compression < 0.9
    show_estimate(config, figures, 1)
    show_layers(plan)
    record = {"step": 1, "loss": 1.0, "lr": 1.0, "grad_norm": 1.0, "tokens_per_second": 1.0}
    record["flops_per_second"] = 1e9
    shown = capsys.readouterr().out + step_line(record, config, 1.0, figures.compression)
    assert "smaller" not in shown
    assert "0." not in re.sub(r"[\d.]+ KiB", "", shown.split("step ")[0])
    assert f"{1 / figures.compression:.2f}× larger" in shown
    assert f"{1 / figures.compression:.1f}× larger than dense" in shown


@pytest.mark.parametrize("kind", KINDS)
def test_the_remedy_is_one(kind):
    config, plan = planned(
        kind, *WIDE, "tensor.embedding_rank=64", "tensor.embedding_min_rows=0", "model.format=tensor"
    )
    line = oversize_line(config, plan)
    formats = re.findall(r"model\.format\.\w+=dense", line)
    larger = sum(layer.parameters > layer.dense_parameters for layer in plan.values())
    assert line.startswith(f"Larger than dense: {larger} of {len(plan)} matrices, ")
    assert "lower tensor.rank" in line
    assert formats
    rest = "model.format.rest=tensor"
    assert oversize_line(*planned(kind, *WIDE, "tensor.embedding_rank=64", rest, *formats)) is None
    assert oversize_line(*planned(kind, "tensor.rank=1", "tensor.outer_rank=1", "tensor.embedding_rank=1")) is None


OWN_RANKS = {
    "low_rank": "tensor.low_rank.rank=40",
    "block_train": "tensor.block_train.rank=9",
    "bottleneck": "tensor.bottleneck.rank=40",
    "sltrain": "tensor.sltrain.rank=40",
}


@pytest.mark.parametrize("format", OWN_RANKS)
def test_the_rank_to_lower_is_that_of_the_format(format):
    key, _, rank = OWN_RANKS[format].partition("=")
    config, plan = planned("decoder", f"model.format.mlp={format}", f"{key}={rank}")
    line = oversize_line(config, plan)
    assert line.startswith(f"Larger than dense: 6 of {len(plan)} matrices, ")
    assert line.endswith(f"; lower {key}, or set model.format.mlp=dense.")
    assert oversize_line(*planned("decoder", f"model.format.mlp={format}", f"{key}=1")) is None


@pytest.mark.parametrize("format", ["low_rank", "bottleneck"])
def test_a_format_without_a_rank_of_its_own_takes_that_of_tensor_trains(format):
    """Its own key goes before tensor.rank, so lowering it helps in any case."""
    config, plan = planned("decoder", f"model.format.mlp={format}", "tensor.rank=40", "model.format.attention=dense")
    assert f"; lower tensor.{format}.rank, or " in oversize_line(config, plan)


def test_ranks_of_several_formats_are_named_together():
    formats = ["model.format.mlp=block_train", "tensor.block_train.rank=9", "model.format.embedding=block_train"]
    line = oversize_line(*planned("decoder", *WIDE, *formats))
    remedy = "lower tensor.block_train.rank, tensor.rank or tensor.outer_rank, or set model.format.attention=dense and "
    assert remedy in line


def test_the_ranks_of_a_rule_are_those_to_lower():
    rule = "tensor.layers=[{match: '*.q_proj', rank: 64, outer_rank: 64}, {match: '*', order: 2}]"
    assert "; lower the ranks in tensor.layers, or set " in oversize_line(*planned("decoder", rule))
    of_tables = "tensor.embeddings=[{match: '*', format: block_train, options: {rank: 9}}]"
    line = oversize_line(*planned("decoder", of_tables))
    assert "; lower the ranks in tensor.embeddings, or set model.format.embedding=dense." in line
    orders = "tensor.layers=[{match: '*', order: 2}]"
    assert "; lower tensor.rank or tensor.outer_rank, or set " in oversize_line(*planned("decoder", *WIDE, orders))


def test_a_rank_of_one_is_not_to_be_lowered():
    narrow = ["model.d_model=2", "model.heads=1", "model.d_ff=2", "model.format=block_train"]
    line = oversize_line(*planned("decoder", *narrow))
    assert "lower" not in line
    assert "; set model.format.attention=dense and " in line


@pytest.mark.parametrize("kind", KINDS)
def test_the_key_of_a_layers_format_is_the_one_that_decides_it(kind):
    config, plan = planned(kind, "model.format=tensor", "tensor.embedding_min_rows=0")
    format_key = kind_of(config.model).format_key
    for name, layer in plan.items():
        if not isinstance(layer, DensePlan):
            _, changed = planned(kind, "model.format=tensor", f"model.format.{format_key(name)}=dense")
            assert isinstance(changed[name], DensePlan), name


def test_the_command_names_layers_count_and_remedy(capsys, monkeypatch):
    ranks = ["tensor.rank=256", "tensor.outer_rank=256", "tensor.layers=[]"]
    arguments = ["--config", "benchmarks/tensor_train.yaml", "--vocab-size", "4096", *ranks]
    monkeypatch.setattr("sys.argv", ["estimate.py", *arguments])
    assert main() == 0
    shown = capsys.readouterr().out
    assert "of 30 matrices, model.layers.0.self_attn.q_proj (" in shown
    assert " more; lower tensor.rank or tensor.outer_rank, or set model.format.attention=dense" in shown
