"""Builds single layers as the plan stores them: dense, tensor train, or what is left of a removed one.

Shapes: N in-features, M out-features. Weights are drawn from `generator`, or left for the caller to load where it is
None.
"""

import torch
from torch import Tensor, nn

from comera_dist.formats.plan import LayerPlan
from comera_dist.formats.tensor_train.embedding import TTMEmbedding
from comera_dist.formats.tensor_train.linear import RemovedLinear, TTLinear
from comera_dist.formats.tensor_train.train_shapes import TTMShape, TTShape


class RemovedBiasedLinear(RemovedLinear):
    """What is left of a linear layer N → M with a bias after it has lost all ranks: the bias (M), whatever x is."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__(in_features, out_features)
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.bias.to(x.dtype)


def build_linear(layer: LayerPlan, std: float, generator: torch.Generator | None, bias: bool = False) -> nn.Module:
    """A linear layer whose weight has the norm of one with entries N(0, std²), and a bias of zeros where asked for."""
    if layer.is_removed:
        return (RemovedBiasedLinear if bias else RemovedLinear)(layer.inputs, layer.outputs)
    if layer.shape is None:
        return draw_normal(nn.Linear(layer.inputs, layer.outputs, bias=bias), std, generator)
    cores = empty_cores(layer.shape, generator)
    return TTLinear(layer.shape, bias=bias, std=std, generator=generator, cores=cores)


def build_embedding(layer: LayerPlan, std: float, generator: torch.Generator | None) -> nn.Module:
    """An embedding table whose entries have mean square std²."""
    if layer.shape is None:
        return draw_normal(nn.Embedding(layer.inputs, layer.outputs), std, generator)
    return TTMEmbedding(layer.shape, std=std, generator=generator, cores=empty_cores(layer.shape, generator))


def embedding_table(embedding: nn.Module) -> Tensor:
    """All rows (V, D) of an embedding, differentiable."""
    return embedding.to_dense() if isinstance(embedding, TTMEmbedding) else embedding.weight


def empty_cores(shape: TTShape | TTMShape, generator: torch.Generator | None) -> list[Tensor] | None:
    """Cores without values, or None where values are to be drawn."""
    return None if generator is not None else [torch.empty(size) for size in shape.core_shapes]


def draw_normal(module: nn.Module, std: float, generator: torch.Generator | None) -> nn.Module:
    """The module with a weight of entries N(0, std²) and a bias of zeros; as it was where there is no generator."""
    if generator is not None:
        nn.init.normal_(module.weight, std=std, generator=generator)
        if getattr(module, "bias", None) is not None:
            nn.init.zeros_(module.bias)
    return module
