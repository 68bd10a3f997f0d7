"""The sizes of CoMERA's six-encoder benchmark at its published shapes, line by line, and plans that are refused."""

import pytest
import torch
from support import ROOT

from comera_dist.config.reader import read_config
from comera_dist.costs.parts import stored_parts
from comera_dist.errors import ConfigError
from comera_dist.formats.dense import DensePlan
from comera_dist.models.family import build_model, known_facts, plan_model

# Stored parameters of the tensorized model.
SIX_ENCODER_TABLE = {
    "embedding": 167_904,
    "positions": 393_216,
    "token types": 1_536,
    "norms": 9_984,
    "encoder biases": 51_456,
    "encoder cores": 838_272,
    "encoder gates": 4_152,
    "classifier cores": 20_448,
    "classifier gates": 114,
    "classifier biases": 771,
    "output": 2_304,
}

# The norms' shifts count among the encoder's biases, also those of the norm after the embeddings.
PARTS = {
    "word_embeddings": "embedding",
    "position_embeddings": "positions",
    "token_type_embeddings": "token types",
    "LayerNorm.weight": "norms",
    "LayerNorm.bias": "encoder biases",
    "classifier.weight": "output",
}
KINDS = {"core": "cores", "gate": "gates", "bias": "biases"}
TINY = (
    *("model.kind=encoder", "model.vocab_size=50", "model.d_model=16", "model.d_ff=24"),
    *("model.heads=4", "model.layers=3", "model.positions=12", "data.seq_len=8", "train.steps=1"),
    *("tensor.order=2", "tensor.rank=4", "tensor.embedding_order=2", "tensor.embedding_rank=4"),
)


def six_encoder(*overrides):
    return read_config(ROOT / "configs/mnli_six_encoder.yaml", overrides)


def tiny(*overrides):
    classes = ["model.classes=3"] * ("model.head=classification" in overrides)
    return read_config(None, [*TINY, *classes, *overrides])


def planned(config):
    return plan_model(config, known_facts(config))


def sizes_of(config):
    """Numbers of every parameter of the built model by name."""
    with torch.device("meta"):
        model = build_model(config.model, planned(config), generator=None)
    return {name: p.numel() for name, p in model.named_parameters()}


def line_of(name):
    """The line of the table that counts a parameter."""
    line = next((line for part, line in PARTS.items() if part in name), None)
    kind = name.rpartition(".")[2].partition("_")[0]
    return line or f"{'encoder' if '.encoder.' in name else 'classifier'} {KINDS[kind]}"


def test_six_encoder_stores_what_its_shapes_say():
    config = six_encoder()
    lines = dict.fromkeys(SIX_ENCODER_TABLE, 0)
    for name, size in sizes_of(config).items():
        lines[line_of(name)] += size
    assert lines == SIX_ENCODER_TABLE
    assert sum(lines.values()) == sum(stored_parts(config, planned(config)).values()) == 1_490_157


def test_dense_six_encoder_stores_what_its_shapes_say():
    config = six_encoder("model.format=dense", "ranks.adapt=false")
    dense, tensorized = planned(config), planned(six_encoder())
    assert sum(sizes_of(config).values()) == sum(stored_parts(config, dense).values()) == 66_957_315
    assert {n: p.dense_parameters for n, p in tensorized.items()} == {n: p.parameters for n, p in dense.items()}


@pytest.mark.parametrize("head", ["classification", "masked_lm"])
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("kind", ["dense", "tensor"])
def test_what_is_counted_is_what_is_built(head, norm, kind):
    config = tiny(f"model.head={head}", f"model.norm={norm}", f"model.format={kind}")
    sizes, parts = sizes_of(config), stored_parts(config, planned(config))
    assert sum(sizes.values()) == sum(parts.values())
    norm_weights = sum(size for name, size in sizes.items() if name.endswith(("LayerNorm.weight", "ln.weight")))
    assert parts["norms: weights"] == norm_weights == 16 * (2 * 3 + 1 + (head == "masked_lm"))
    assert ("blocks: gates" in parts) == (kind == "tensor")


def test_the_bias_of_the_output_is_counted_and_only_for_hidden_words():
    config = tiny("model.head=masked_lm", "model.output_bias=true")
    sizes, parts = sizes_of(config), stored_parts(config, planned(config))
    assert sum(sizes.values()) == sum(parts.values())
    assert parts["predictions: biases"] == sizes["cls.predictions.bias"] == 50
    with pytest.raises(
        ConfigError, match=r"output_bias = true .* model\.head = classification always has a bias; remove"
    ):
        tiny("model.head=classification", "model.output_bias=true")


def test_only_a_classifier_has_classes():
    with pytest.raises(ConfigError, match=r"classes = 3 .* model\.head = masked_lm has no classes; remove it"):
        tiny("model.head=masked_lm", "model.classes=3")


@pytest.mark.parametrize(("part", "layers"), [("attention", 4), ("mlp", 2), ("head", 1), ("embedding", 1)])
def test_each_kind_of_layer_has_a_format_of_its_own(part, layers):
    others = [f"model.format.{other}=dense" for other in ("attention", "mlp", "head", "embedding") if other != part]
    trains = [name for name, layer in planned(tiny(*others)).items() if not isinstance(layer, DensePlan)]
    assert len(trains) == layers * (3 if part in ("attention", "mlp") else 1)


def test_modes_that_do_not_fit_are_an_error():
    with pytest.raises(ConfigError, match=r"in_modes = \(3, 4\) has the product 12, expected .* from 16 to 31"):
        planned(tiny("tensor.layers=[{match: '*.query', in_modes: [3, 4]}]"))


@pytest.mark.parametrize(("key", "kind"), [("layers", "layer"), ("embeddings", "embedding")])
def test_a_rule_that_matches_nothing_is_an_error(key, kind):
    with pytest.raises(ConfigError, match=rf"tensor.{key}: the pattern '\*.q_proj' matches no {kind}"):
        planned(tiny(f"tensor.{key}=[{{match: '*.q_proj', rank: 2}}]"))
