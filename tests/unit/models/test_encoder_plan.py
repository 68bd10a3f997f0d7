"""The sizes of CoMERA's six-encoder benchmark at its published shapes, line by line, and plans that are refused."""

from dataclasses import replace
from math import prod

import pytest
import torch

from comera_dist.errors import ConfigError
from comera_dist.models.encoder import EncoderClassifier
from comera_dist.models.encoder_plan import SIX_ENCODER, SIX_ENCODER_FORMATS, EncoderFormats, plan_encoder
from comera_dist.tensor.convert import TTPlan

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


def line_of(name):
    """The line of the table that counts a parameter."""
    line = next((line for part, line in PARTS.items() if part in name), None)
    kind = name.rpartition(".")[2].partition("_")[0]
    return line or f"{'encoder' if '.encoder.' in name else 'classifier'} {KINDS[kind]}"


def table(sizes):
    lines = dict.fromkeys(SIX_ENCODER_TABLE, 0)
    for name, size in sizes.items():
        lines[line_of(name)] += size
    return lines


def planned_sizes(shape, plan):
    """Numbers of every parameter by name, from the plan and the two norms of a block and one of the embeddings."""
    sizes = {}
    for name, layer in plan.items():
        if layer.shape is None:
            sizes[f"{name}.weight"] = layer.parameters
        else:
            sizes |= {f"{name}.core_{k}": prod(size) for k, size in enumerate(layer.shape.core_shapes, start=1)}
            sizes |= {f"{name}.gate_{k}": rank for k, rank in enumerate(layer.shape.bonds, start=1)}
        if not layer.is_embedding:
            sizes[f"{name}.bias"] = layer.outputs
    norms = [f"bert.encoder.layer.{i}.{half}output" for i in range(shape.layers) for half in ("attention.", "")]
    for name in ["bert.embeddings", *norms]:
        sizes |= {f"{name}.LayerNorm.weight": shape.d_model, f"{name}.LayerNorm.bias": shape.d_model}
    return sizes


def sizes_of(model):
    return {name: p.numel() for name, p in model.named_parameters()}


def test_six_encoder_stores_what_its_shapes_say():
    plan = plan_encoder(SIX_ENCODER, SIX_ENCODER_FORMATS)
    sizes = sizes_of(EncoderClassifier(SIX_ENCODER, plan, torch.Generator().manual_seed(0)))
    assert table(sizes) == SIX_ENCODER_TABLE
    assert sizes == planned_sizes(SIX_ENCODER, plan)
    assert sum(sizes.values()) == 1_490_157
    vectors = sum(size for name, size in sizes.items() if name.endswith("bias") or "LayerNorm" in name)
    assert sum(layer.parameters for layer in plan.values()) == 1_490_157 - vectors


def test_dense_six_encoder_stores_what_its_shapes_say():
    plan = plan_encoder(SIX_ENCODER)
    with torch.device("meta"):
        sizes = sizes_of(EncoderClassifier(SIX_ENCODER, plan, generator=None))
    assert sizes == planned_sizes(SIX_ENCODER, plan)
    assert sum(sizes.values()) == 66_957_315
    tensorized = plan_encoder(SIX_ENCODER, SIX_ENCODER_FORMATS)
    assert {n: layer.dense_parameters for n, layer in tensorized.items()} == {n: p.parameters for n, p in plan.items()}


def test_heads_that_do_not_divide_the_width_are_an_error():
    with pytest.raises(ConfigError, match="5 heads need a multiple of 5"):
        replace(SIX_ENCODER, heads=5)


def test_modes_that_do_not_fit_are_an_error():
    with pytest.raises(ConfigError, match="in_features = 768"):
        plan_encoder(SIX_ENCODER, EncoderFormats(attention=TTPlan(order=2, rank=4, in_modes=(3, 4))))
