"""Figures of a module that no plan describes, beside those that its plan would give."""

import pytest
import torch
from support import FACTS, TINY

from comera_dist.config.reader import read_config
from comera_dist.costs.estimate import estimate
from comera_dist.costs.module_estimate import estimate_module
from comera_dist.models.family import build_model, plan_model

SIZES = ("params", "dense_params", "size_bytes", "compression", "state_bytes_per_process", "gradient_bytes_per_step")


HALVED = ["deepspeed.communication_data_type=bf16"]
ACCUMULATED = ["train.zero_stage=2", "train.micro_batch=1"]
NARROW = ["train.zero_stage=1", "optim.moments=8bit"]


@pytest.mark.parametrize("more", [["train.zero_stage=0"], ["train.zero_stage=3"], HALVED, ACCUMULATED, NARROW], ids=str)
@pytest.mark.parametrize("format", ["tensor", "dense"])
def test_sizes_of_a_module_are_those_of_its_plan(format, more):
    config = read_config(None, [*TINY, f"model.format={format}", *more])
    plan = plan_model(config, FACTS)
    model = build_model(config.model, plan, torch.Generator().manual_seed(0))
    found, planned = estimate_module(model, config, 2), estimate(config, plan, 2, tokens_per_forward=64)
    assert {name: getattr(found, name) for name in SIZES} == {name: getattr(planned, name) for name in SIZES}
