"""The kinds of model: which plan and which module belong to a configuration."""

import torch
from torch import nn

from comera_dist.config.model_section import ModelSection
from comera_dist.formats.plan import Plan
from comera_dist.models.decoder.model import Decoder
from comera_dist.models.dlrm.model import DLRM
from comera_dist.models.encoder.model import Encoder

MODULES = {"decoder": Decoder, "encoder": Encoder, "dlrm": DLRM}


def build_model(config: ModelSection, plan: Plan, generator: torch.Generator | None) -> nn.Module:
    """The model that `config` describes, stored as `plan` says.

    Weights are drawn from `generator` in a fixed order, or left for the caller to load where it is None.
    """
    return MODULES[config.kind](config, plan, generator)
