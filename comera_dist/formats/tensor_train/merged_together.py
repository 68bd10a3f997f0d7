"""Merges the sides of all layers of a model at once, which saves launching many small products."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from comera_dist.formats.tensor_train.linear import TTLinear
from comera_dist.formats.tensor_train.sides import merge_sides_of
from comera_dist.ops.autocast import compute_dtype


@contextmanager
def merged_together(model: nn.Module, tokens: int) -> Iterator[None]:
    """While it lasts, the model's layers use sides that were merged at its start, equal ones in batched products.

    Layers that contract `tokens` tokens core by core are left out. So is a whole model whose parameters are sharded
    (its attribute `merges_together` is False): a layer's parameters are then there only while it runs.
    """
    layers = list(_layers_to_merge(model, tokens)) if getattr(model, "merges_together", True) else []
    for layer, sides in zip(layers, merge_sides_of(layers), strict=True):
        layer.merged_sides = sides
    try:
        yield
    finally:
        for layer in layers:
            layer.merged_sides = None


def _layers_to_merge(model: nn.Module, tokens: int) -> Iterator[TTLinear]:
    for layer in model.modules():
        if isinstance(layer, TTLinear) and layer.contraction_plan(tokens, compute_dtype(layer.core_1)).path != "chain":
            yield layer
