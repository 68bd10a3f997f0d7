"""A linear layer whose weight is a tensor train.

Shapes: N in-features, M out-features, R middle rank; x is (…, N), y is (…, M).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comera_dist.formats.dense_layers import Then
from comera_dist.formats.tensor_train.chain import contract_chain
from comera_dist.formats.tensor_train.contraction import merge_sides
from comera_dist.formats.tensor_train.contraction_plan import ContractionPlan, plan_contraction
from comera_dist.formats.tensor_train.cores import random_tt_cores
from comera_dist.formats.tensor_train.sides import Sides, merge_sides_of
from comera_dist.formats.tensor_train.tensor_train import TensorTrain
from comera_dist.formats.tensor_train.train_shapes import TTShape
from comera_dist.formats.tensor_train.tt_svd import tt_from_dense
from comera_dist.ops.autocast import compute_dtype


class TTLinear(TensorTrain):
    """y = x U V + bias, where U (N, R) and V (R, M) are merged from cores (r_{k-1}, mode_k, r_k) and their
    gates.

    Starts with the weight norm of a dense layer of entries N(0, std²), std = 1/√N unless given, and a zero
    bias; or from `cores`, where given, as tt_from_dense makes them. Cores, gates and bias are kept in
    `dtype`; the product is computed in the dtype of x or of autocast.
    """

    merged_sides: Sides | None = None  # while `merged_together` lasts

    def __init__(
        self,
        shape: TTShape,
        bias: bool = False,
        std: float | None = None,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        cores: list[Tensor] | None = None,
    ):
        if cores is None:
            cores = random_tt_cores(shape, shape.in_features**-0.5 if std is None else std, generator)
        super().__init__(shape, cores, device, dtype)
        self.in_features, self.out_features = shape.in_features, shape.out_features
        self.bias = nn.Parameter(torch.zeros(shape.out_features, device=device, dtype=dtype)) if bias else None

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
        plan = self.contraction_plan(x.numel() // self.in_features, compute_dtype(x))
        if plan.path == "chain":
            y = contract_chain(x, self.gated_cores(), self.shape, plan)
            return y if self.bias is None else y + self.bias.to(y.dtype)
        U_NR, V_RM = self.sides()
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if plan.path == "dense":
            return F.linear(x, _product(U_NR, V_RM).T.to(x.dtype), bias)
        return F.linear(x @ U_NR.to(x.dtype), V_RM.T.to(x.dtype), bias)

    def contraction_plan(self, tokens: int, dtype: torch.dtype) -> ContractionPlan:
        """How so many tokens are contracted with this layer where products are computed in `dtype`."""
        return plan_contraction(self.shape, tokens, self.core_1.device.type, dtype.itemsize)

    def shares_input(self, tokens: int, dtype: torch.dtype) -> bool:
        return self.contraction_plan(tokens, dtype).path == "sides"

    def sides(self) -> Sides:
        """U (N, R) and V (R, M) as the layer multiplies by them: their rank may be padded by zeros."""
        return self.merged_sides or merge_sides_of([self])[0]

    def factors(self) -> Sides:
        """The merged sides U (N, R) and V (R, M) at their true rank, gates included, in the dtype of the cores."""
        return merge_sides(self.gated_cores(), self.shape)

    def to_dense(self) -> Tensor:
        """The weight (M, N), as nn.Linear stores it; differentiable."""
        return _product(*self.factors()).T

    @classmethod
    def from_dense(
        cls, weight_MN: Tensor, shape: TTShape, bias: Tensor | None = None, tolerance: float | None = None
    ) -> "TTLinear":
        """The layer closest to a dense weight that TT-SVD finds: ranks of `shape`, fewer where `tolerance` allows.

        `tolerance` bounds the relative Frobenius error as far as those ranks reach. Raises ConfigError for a
        weight of another size.
        """
        weight_MN = weight_MN.detach()
        cores, shape = tt_from_dense(weight_MN, shape, tolerance)
        layer = cls(shape, bias=bias is not None, device=weight_MN.device, cores=cores)
        if bias is not None:
            layer.bias.data.copy_(bias)
        return layer

    def extra_repr(self) -> str:
        shape = self.shape
        modes = f"{'·'.join(map(str, shape.in_modes))} → {'·'.join(map(str, shape.out_modes))}"
        features = f"{shape.in_features} → {shape.out_features}"
        return f"{features}, modes {modes}, ranks {shape.ranks}, bias={self.bias is not None}"


def _product(U_NR: Tensor, V_RM: Tensor) -> Tensor:
    with torch.autocast(U_NR.device.type, enabled=False):
        return U_NR @ V_RM
