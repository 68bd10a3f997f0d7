"""Builds single layers as the plan stores them.

Weights are drawn from `generator`, or left for the caller to load where it is None.
"""

import torch
from torch import Tensor, nn

from comera_dist.formats.base import MatrixPlan
from comera_dist.formats.capabilities import ToDense


def build_linear(plan: MatrixPlan, std: float, generator: torch.Generator | None, bias: bool = False) -> nn.Module:
    """A linear layer whose weight has the norm of one with entries N(0, std²), and a bias of zeros where asked for."""
    return plan.build(std, generator, bias)


def build_embedding(plan: MatrixPlan, std: float, generator: torch.Generator | None) -> nn.Module:
    """An embedding table whose entries have mean square std²."""
    return plan.build(std, generator)


def embedding_table(embedding: nn.Module) -> Tensor:
    """All rows (V, D) of an embedding, differentiable."""
    if isinstance(embedding, ToDense):
        return embedding.to_dense()
    table: Tensor = embedding.weight
    return table
