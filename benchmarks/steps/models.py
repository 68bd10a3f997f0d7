"""Builds the model of a side on its device.

Initial values do not matter to what a step costs, so they are drawn where they are fast to draw: cores as independent
normal numbers, dense layers as torch does it. Shapes: C classes, B batch, S sequence.
"""

from math import prod

import torch
from rivals.comera_scheme import ComeraEmbedding, ComeraLinear
from rivals.ranked_train import RankedTrain
from torch import nn

from comera_dist.config import Config
from comera_dist.data.windows import TextBatch
from comera_dist.models.decoder import Decoder
from comera_dist.models.encoder import STD, EncoderClassifier
from comera_dist.models.encoder_plan import plan_encoder
from comera_dist.models.decoder_plan import plan_decoder
from comera_dist.models.plan import LayerPlan
from comera_dist.tensor.tensor_train import TensorTrain
from steps.cases import DENSE, OURS, SCHEME, Case


def build(case: Case, model: str, config: Config, device: torch.device) -> nn.Module:
    """Called with tokens and targets, the module returns the summed loss."""
    with torch.device(device):
        if case.shape is not None:
            return _encoder(case, model)
        decoder = Decoder(config.model, plan_decoder(config, case.vocabulary), generator=None)
        return drawn(decoder)


def batch_of(case: Case, sequences: int) -> TextBatch:
    """Random tokens without padding; a decoder's next tokens, or one of C classes for each sequence."""
    generator = torch.Generator().manual_seed(2)
    tokens_BS = torch.randint(1, case.vocabulary, (sequences, case.seq_len), generator=generator)
    if case.shape is None:
        return TextBatch(tokens_BS, tokens_BS.roll(-1, dims=1))
    return TextBatch(tokens_BS, torch.randint(case.shape.classes, (sequences,), generator=generator))


def drawn(model: nn.Module) -> nn.Module:
    """The model with random cores: every train has entries of variance STD²."""
    for train in model.modules():
        if isinstance(train, TensorTrain):
            std = (STD**2 / prod(train.shape.bonds)) ** (0.5 / len(train.cores))
            for core in train.cores:
                nn.init.normal_(core, std=std)
    return model


def _encoder(case: Case, model: str) -> EncoderClassifier:
    if model == OURS:
        return drawn(EncoderClassifier(case.shape, plan_encoder(case.shape, case.formats), generator=None))
    encoder = EncoderClassifier(case.shape, plan_encoder(case.shape), generator=None)
    if model == SCHEME:
        for name, layer in plan_encoder(case.shape, case.formats).items():
            if layer.shape is not None:
                encoder.set_submodule(name, _in_scheme(layer))
    else:
        assert model == DENSE, model
    return encoder


def _in_scheme(layer: LayerPlan) -> RankedTrain:
    shape = layer.shape
    if layer.is_embedding:
        return ComeraEmbedding(shape.vocab_modes, shape.width_modes, shape.ranks)
    return ComeraLinear(shape.in_modes, shape.out_modes, shape.ranks, bias=True)
