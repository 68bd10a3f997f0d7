"""Builds the model of a side on its device.

The cost of a step does not depend on initial values, so they are drawn on the device: cores as independent normal
numbers, dense layers as torch does it.

Shapes: C classes, B batch, S sequence.
"""

from math import prod

import torch
from torch import nn

from benchmarks.rivals.comera_scheme import ComeraEmbedding, ComeraLinear
from benchmarks.rivals.ranked_train import RankedTrain
from benchmarks.steps.cases import SCHEME, Case
from comera_dist.config.tree import Config
from comera_dist.data.pairs import PairBatch
from comera_dist.data.windows import TextBatch
from comera_dist.formats.gated_layer import GatedLayer
from comera_dist.formats.shared_layers import SharedMatrix
from comera_dist.formats.tensor_train.train_shapes import TTMShape, TTShape
from comera_dist.models.encoder.trunk import STD
from comera_dist.models.family import build_model, plan_model

Batch = TextBatch | PairBatch


def build(case: Case, model: str, config: Config, device: torch.device) -> nn.Module:
    """A module whose forward takes a batch and returns the summed loss.

    CoMERA's scheme is our model with a layer of that scheme in place of each tensor train.
    """
    plan = plan_model(config, case.facts)
    with torch.device(device):
        built = drawn(build_model(config.model, plan, generator=None))
        if model == SCHEME:
            for name, layer in plan.items():
                if isinstance(layer, TTShape | TTMShape):
                    built.set_submodule(name, _in_scheme(layer))
    return built


def batch_of(case: Case, sequences: int) -> Batch:
    """Random tokens (B, S) without padding; targets are a decoder's next tokens or one of C classes per sequence."""
    generator = torch.Generator().manual_seed(2)
    tokens_BS = torch.randint(1, case.vocabulary, (sequences, case.seq_len), generator=generator)
    if case.classes is None:
        return TextBatch(tokens_BS, tokens_BS.roll(-1, dims=1))
    classes_B = torch.randint(case.classes, (sequences,), generator=generator)
    return PairBatch(tokens_BS, torch.zeros_like(tokens_BS), classes_B)


def drawn(model: nn.Module) -> nn.Module:
    """The model with random tables and cores: every weight has entries of variance STD²."""
    for layer in model.modules():
        if isinstance(layer, nn.Embedding | SharedMatrix):
            nn.init.normal_(layer.weight, std=STD)
        if isinstance(layer, GatedLayer):
            cores = [p for name, p in layer.named_parameters() if name.startswith("core_")]
            std = (STD**2 / prod(layer.plan.bonds)) ** (0.5 / len(cores))
            for core in cores:
                nn.init.normal_(core, std=std)
    return model


def _in_scheme(shape: TTShape | TTMShape) -> RankedTrain:
    if isinstance(shape, TTMShape):
        return ComeraEmbedding(shape.in_modes, shape.out_modes, shape.ranks)
    return ComeraLinear(shape.in_modes, shape.out_modes, shape.ranks, bias=True)
