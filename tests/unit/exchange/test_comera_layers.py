"""The layers of exported models against our own, for every format, with sizes that need padding."""

import json

import pytest
import torch
from diagonal_format import DiagonalPlan

from comera_dist.config.reader import read_config
from comera_dist.config.registry import FORMATS
from comera_dist.errors import ConfigError
from comera_dist.exchange import comera_layers
from comera_dist.exchange.comera_layers import TiedOutput, stored_layer
from comera_dist.exchange.stored_layers import densify_others, records
from comera_dist.formats.block_train import BlockTrainPlan, plan_blocks
from comera_dist.formats.bottleneck import BottleneckPlan
from comera_dist.formats.capabilities import ToDense, plan_of
from comera_dist.formats.mixed_dimension import MixedDimensionPlan
from comera_dist.formats.plan import plan_linear
from comera_dist.formats.removed import RemovedPlan
from comera_dist.formats.tensor_train.shapes import plan_tt, plan_ttm

LINEAR = [
    RemovedPlan(18, 10),
    plan_tt(18, 10, 2, 6),
    plan_tt(17, 11, 3, 4),
    plan_tt(18, 10, 1, 4),
    plan_blocks(18, 10, 2),
    plan_blocks(17, 11, 3),
    BottleneckPlan(18, 10, 5),
    MixedDimensionPlan(10, 18, (3, 5, 10), (10, 4, 2)),
]
TABLES = [
    plan_ttm(20, 12, 2, 4),
    plan_ttm(21, 10, 3, 3),
    plan_ttm(21, 10, 2, 3, vocab_modes=(21, 1), width_modes=(1, 10)),
    BlockTrainPlan(21, 10, (5, 5), (2, 5), 2, is_embedding=True),
    MixedDimensionPlan(21, 10, (3, 6, 12), (8, 4, 2), is_embedding=True),
]


def both(plan):
    """A module of the plan with random numbers in place of open gates and empty biases, and its stored layer."""
    generator = torch.Generator().manual_seed(3)
    ours = plan.build(0.3, generator, bias=not plan.is_embedding)
    for parameter in ours.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    record = json.loads(json.dumps(records({"layer": plan})["layer"]))
    theirs = stored_layer(record, has_bias=not plan.is_embedding)
    theirs.load_state_dict(ours.state_dict())
    return ours.double(), theirs.double()


@pytest.mark.parametrize("plan", LINEAR, ids=str)
def test_a_linear_layer_computes_as_ours(plan):
    ours, theirs = both(plan)
    x = torch.randn(2, 5, plan.inputs, dtype=torch.float64)
    torch.testing.assert_close(theirs(x), ours(x))


@pytest.mark.parametrize("plan", TABLES, ids=str)
def test_a_table_has_our_rows_and_serves_as_an_output(plan):
    ours, theirs = both(plan)
    torch.testing.assert_close(theirs(torch.arange(plan.inputs)), ours(torch.arange(plan.inputs)))
    x, head = torch.randn(3, plan.outputs, dtype=torch.float64), torch.nn.Module()
    output = TiedOutput(theirs, head)
    torch.testing.assert_close(output(x), x @ ours.to_dense().T)
    head.bias = torch.nn.Parameter(torch.randn(plan.inputs, dtype=torch.float64))
    torch.testing.assert_close(output(x), x @ ours.to_dense().T + head.bias)
    assert not list(output.parameters())


def test_every_format_becomes_dense_or_is_stored():
    config = read_config(None, ["train.steps=1"])
    for name in FORMATS.names():
        if name == "shared":  # a single layer cannot share: test_hugging_face.py exports it
            continue
        plan = plan_linear(config, "layer", name, 64, 64)
        model = torch.nn.Sequential(plan.build(0.1, torch.Generator()))
        is_stored = plan_of(model[0]) is not None and not isinstance(model[0], ToDense)
        assert densify_others(model, keeps_factors=False) == ({"0": plan} if is_stored else {})
        assert not is_stored or plan.tag in comera_layers.FORMATS


def test_a_format_from_elsewhere_becomes_dense_or_is_refused():
    model = torch.nn.Sequential(DiagonalPlan(4, 4, 1).build(0.1, torch.Generator()))
    expected = model(torch.eye(4))
    assert densify_others(model, keeps_factors=True) == {}
    torch.testing.assert_close(model(torch.eye(4)), expected)
    with pytest.raises(ConfigError, match=r"layer is stored in the format diagonal, .*; export with --to tensors"):
        records({"layer": DiagonalPlan(4, 4, 1)})
