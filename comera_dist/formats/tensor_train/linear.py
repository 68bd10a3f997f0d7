"""A linear layer whose weight is a tensor train.

Shapes: N in-features, M out-features, R middle rank; x is (…, N), y is (…, M).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from comera_dist.formats.dense_layers import Then
from comera_dist.formats.tensor_train.contraction import contract_chain, merge_sides
from comera_dist.formats.tensor_train.contraction_plan import ContractionPlan, plan_contraction
from comera_dist.formats.tensor_train.sides import Sides, merge_sides_of
from comera_dist.formats.tensor_train.tensor_train import TensorTrain
from comera_dist.formats.tensor_train.train_shapes import TTShape
from comera_dist.ops.autocast import compute_dtype, without_autocast
from comera_dist.ops.products import linear, multiply


class TTLinear(TensorTrain[TTShape]):
    """y = x U V + bias, where U (N, R) and V (R, M) are merged from the cores and their gates.

    The product is computed in the dtype of x or of autocast.
    """

    merged_sides: Sides | None = None  # set by `using_sides` while its block runs

    def forward(self, x: Tensor | None = None, then: Then | None = None) -> Tensor | Sides:
        """y; or, called without x, the merged sides, for layers that share their input (see `shared_input`).

        The path is the planner's cheapest for this many tokens (see `plan_contraction`). With `then`, the result of
        then(x U, Vᵀ), so that a loss need not hold all of y.
        """
        if x is None:
            return self.sides()
        if then is not None:
            U_NR, V_RM = self.sides()
            return then(x @ U_NR, V_RM.T)
        return self.multiply(x, self.contraction_plan(x.numel() // self.plan.inputs, compute_dtype(x)))

    def multiply(self, x: Tensor, plan: ContractionPlan) -> Tensor:
        """y by the path of a plan that was made for this many tokens; every path gives the same."""
        if plan.path == "chain":
            y = contract_chain(x, self.gated_cores(), self.plan, plan)
            return y if self.bias is None else y + self.bias.to(y.dtype)
        U_NR, V_RM = self.sides()
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if plan.path == "dense":
            return linear(x, _product(U_NR, V_RM).T.to(x.dtype), bias)
        return linear(multiply(x, U_NR.to(x.dtype)), V_RM.T.to(x.dtype), bias)

    def contraction_plan(self, tokens: int, dtype: torch.dtype) -> ContractionPlan:
        """How the layer contracts `tokens` tokens when it computes products in `dtype`."""
        return plan_contraction(self.plan, tokens, self.core_1.device.type, dtype.itemsize)

    def shares_input(self, tokens: int, dtype: torch.dtype) -> bool:
        return self.contraction_plan(tokens, dtype).path == "sides"

    def sides(self) -> Sides:
        """U (N, R) and V (R, M) as the layer multiplies by them: their rank may be padded by zeros."""
        return self.merged_sides or merge_sides_of([self])[0]

    def factors(self) -> Sides:
        """The merged sides U (N, R) and V (R, M) at their true rank, gates included, in the dtype of the cores."""
        return merge_sides(self.gated_cores(), self.plan)

    def to_dense(self) -> Tensor:
        """The weight (M, N), as nn.Linear stores it; differentiable."""
        return _product(*self.factors()).T


def _product(U_NR: Tensor, V_RM: Tensor) -> Tensor:
    with without_autocast(U_NR):
        return U_NR @ V_RM


# Layers and their merged sides.
Merged = Sequence[tuple[TTLinear, Sides]]


@contextmanager
def merged_together(model: nn.Module, tokens: int) -> Iterator[None]:
    """While it lasts, the model's layers use sides that were merged at its start, equal ones in batched products.

    Layers that contract `tokens` tokens core by core are left out. So is a whole model whose parameters are sharded
    (its attribute `merges_together` is False): a layer's parameters are then there only while it runs.
    """
    layers = list(_layers_to_merge(model, tokens)) if getattr(model, "merges_together", True) else []
    with using_sides(list(zip(layers, merge_sides_of(layers), strict=True))):
        yield


def merged_in(module: nn.Module) -> Merged:
    """The layers of `module` that use merged sides at present, and these sides."""
    layers = [layer for layer in module.modules() if isinstance(layer, TTLinear)]
    return [(layer, layer.merged_sides) for layer in layers if layer.merged_sides is not None]


@contextmanager
def using_sides(merged: Merged) -> Iterator[None]:
    """While it lasts, these layers use these sides."""
    before = [layer.merged_sides for layer, _ in merged]
    for layer, sides in merged:
        layer.merged_sides = sides
    try:
        yield
    finally:
        for (layer, _), sides_before in zip(merged, before, strict=True):
            layer.merged_sides = sides_before


def _layers_to_merge(model: nn.Module, tokens: int) -> Iterator[TTLinear]:
    for layer in model.modules():
        if isinstance(layer, TTLinear) and layer.contraction_plan(tokens, compute_dtype(layer.core_1)).path != "chain":
            yield layer
