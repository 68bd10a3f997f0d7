"""A linear layer whose weight is a tensor train.

Shapes: N in-features, M out-features, R middle rank; x is (…, N), y is (…, M).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from comera_dist.formats.dense_layers import Then
from comera_dist.formats.tensor_train.chain import contract_chain
from comera_dist.formats.tensor_train.contraction import merge_sides
from comera_dist.formats.tensor_train.contraction_plan import ContractionPlan, plan_contraction
from comera_dist.formats.tensor_train.cores import random_tt_cores
from comera_dist.formats.tensor_train.sides import Sides, merge_sides_of
from comera_dist.formats.tensor_train.tensor_train import TensorTrain
from comera_dist.formats.tensor_train.train_shapes import TTShape
from comera_dist.ops.autocast import compute_dtype


class TTLinear(TensorTrain[TTShape]):
    """y = x U V + bias, where U (N, R) and V (R, M) are merged from the cores and their gates.

    Starts with the weight norm of a dense layer of entries N(0, std²), std = 1/√N unless given, and a zero bias; or
    with the values of `cores`, if given (an empty sequence leaves them without values). Parameters are kept in `dtype`;
    the product is computed in the dtype of x or of autocast.
    """

    merged_sides: Sides | None = None  # set by `merged_together` while its block runs

    def __init__(
        self,
        plan: TTShape,
        bias: bool = False,
        std: float | None = None,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        cores: Sequence[Tensor] | None = None,
    ):
        if cores is None:
            cores = random_tt_cores(plan, plan.inputs**-0.5 if std is None else std, generator)
        super().__init__(plan, cores, bias, dtype)
        self.in_features, self.out_features = plan.inputs, plan.outputs  # as a user's code may read of nn.Linear

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
        plan = self.contraction_plan(x.numel() // self.plan.inputs, compute_dtype(x))
        if plan.path == "chain":
            y = contract_chain(x, self.gated_cores(), self.plan, plan)
            return y if self.bias is None else y + self.bias.to(y.dtype)
        U_NR, V_RM = self.sides()
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if plan.path == "dense":
            return F.linear(x, _product(U_NR, V_RM).T.to(x.dtype), bias)
        return F.linear(x @ U_NR.to(x.dtype), V_RM.T.to(x.dtype), bias)

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
    with torch.autocast(U_NR.device.type, enabled=False):
        return U_NR @ V_RM
