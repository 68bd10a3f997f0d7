"""Low rank plus a sparse matrix on a random, fixed support: W = α/R · core_1 core_2 + S.

Shapes: N in-features, M out-features, R rank, K entries of S; W is (N, M), core_1 (N, R), core_2 (R, M), values (K,).

Han et al. 2024, "SLTrain: a sparse plus low-rank approach for parameter and memory efficient pretraining" (arXiv
2406.02214). The support follows from N, M and K, so nothing stores it: it is the same on every process and after
every resume, and layers of one size share it. The authors draw one for each layer.

Ranks are fixed. Rank adaptation removes a layer that has lost all of its indices; here S would be lost with them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from comera_dist.config.fields import Positive, Section, Share
from comera_dist.config.tensor_section import Tensor as TensorSection
from comera_dist.errors import ConfigError
from comera_dist.formats.base import FP32, Format, FromDense, Product, Sizes, StepCost, Unfoldings, given_rank
from comera_dist.formats.dense_layers import Then
from comera_dist.formats.gated_layer import PlannedLayer, never_zero
from comera_dist.formats.sparse_weight import merge, multiply, place_type, random_support
from comera_dist.ops.autocast import compute_dtype, without_autocast
from comera_dist.ops.products import are_fp8, linear


class SLTrainOptions(Section):
    """Keys of `tensor.sltrain`. The defaults are those of the authors' smallest model, whose rank is 128."""

    rank: Positive | None = None
    """Rank of the low-rank part; null takes `tensor.rank`."""
    alpha: Positive = 32
    """The low-rank part is multiplied by alpha / rank; the authors lower it to 16 and 8 for larger models."""
    sparsity: Share = 0.03
    """Part of the matrix's entries that the sparse part stores."""


@dataclass(frozen=True)
class SLTrainPlan(Unfoldings, FromDense):
    """A layer N → M of two factors, whose product is multiplied by alpha / rank, and of `entries` numbers of S.

    Unfoldings are the factors alone: S is no product of maps. A step of spectral descent changes the weight by alpha /
    rank times that of a dense layer.
    """

    inputs: int
    outputs: int
    rank: int
    entries: int
    alpha: int
    tag = "sltrain"

    def __post_init__(self) -> None:
        if not 1 <= self.entries <= self.dense_parameters or self.rank < 1:
            raise ConfigError(
                f"rank {self.rank} and {self.entries} sparse entries do not fit {self.inputs} x {self.outputs}; take "
                f"the numbers that plan_linear chooses"
            )

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    @property
    def tensors(self) -> dict[str, Sizes]:
        return {**self._factors, "values": (self.entries,)}

    @property
    def unfoldings(self) -> dict[str, tuple[int, int, int]]:
        return {name: (1, rows, columns) for name, (rows, columns) in self._factors.items()}

    @property
    def buffer_bytes(self) -> int:
        return self.entries * np.dtype(place_type(self.dense_parameters)).itemsize

    @property
    def flops_per_token(self) -> int:
        return 2 * self.dense_parameters

    @property
    def merge_flops(self) -> int:
        return self._merging.flops

    def step_cost(self, tokens: int, device_type: str, itemsize: int, is_head: bool = False) -> StepCost:
        """A head keeps its merged weight; other layers merge it again in the backward pass."""
        merging = StepCost.of_products("weight", FP32 if is_head else itemsize, self._merging)
        again = StepCost("weight", 0 if is_head else merging.flops // 3, 0 if is_head else merging.bytes_moved // 3)
        return merging + again + StepCost.of_products("weight", itemsize, Product(tokens, self.inputs, self.outputs))

    def build(self, std: float, generator: torch.Generator | None, bias: bool = False) -> nn.Module:
        """As the authors draw it, whatever `std` is: core_1 and S uniform in ±1/√N (Kaiming), and zeros in core_2."""
        layer = SLTrainLinear(self, bias)
        if generator is not None:
            bound = self.inputs**-0.5
            nn.init.uniform_(layer.core_1, -bound, bound, generator=generator)
            nn.init.zeros_(layer.core_2)
            nn.init.uniform_(layer.values, -bound, bound, generator=generator)
        return layer

    def from_dense(self, weight: Tensor, bias: Tensor | None = None) -> nn.Module:
        """The truncated SVD, and its error at the support: close to the weight, not the closest of this plan."""
        table = self.table_of(weight).double()
        U, S, Vh = torch.linalg.svd(table, full_matrices=False)
        half = (S[: self.rank] / self.scale).sqrt()
        layer = SLTrainLinear(self, bias is not None).to(weight.device)
        with torch.no_grad():
            layer.core_1.copy_(U[:, : self.rank] * never_zero(half))
            layer.core_2.copy_(half[:, None] * Vh[: self.rank])
            error = table - self.scale * (layer.core_1 @ layer.core_2)
            layer.values.copy_(error.flatten().index_select(0, layer.support))
            if bias is not None and layer.bias is not None:
                layer.bias.copy_(bias)
        return layer

    @property
    def description(self) -> str:
        return f"rank {self.rank} + {self.entries} entries"

    @property
    def _factors(self) -> dict[str, tuple[int, int]]:
        return {"core_1": (self.inputs, self.rank), "core_2": (self.rank, self.outputs)}

    @property
    def _merging(self) -> Product:
        return Product(self.inputs, self.rank, self.outputs)


class SLTrainLinear(PlannedLayer[SLTrainPlan]):
    """y (…, M) of x (…, N), in the dtype of x or of autocast, by the merged weight."""

    core_1: nn.Parameter
    core_2: nn.Parameter
    values: nn.Parameter
    support: Tensor

    def __init__(self, plan: SLTrainPlan, bias: bool = False):
        super().__init__(plan, bias)
        self._place()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SLTrainLinear":
        # Also `to_empty`, which would leave places of any numbers.
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's omission
        self._place()
        return self

    def _place(self) -> None:
        """Makes the support on the device of the values.

        It is no buffer: torch's AveragedModel(use_buffers=True) would average the places and round them.
        """
        support = random_support(self.plan.inputs, self.plan.outputs, self.plan.entries)
        self.support = torch.tensor(support, device=self.values.device)

    def forward(self, x: Tensor, then: Then | None = None) -> Tensor:
        """y, or then(x, W), so that a loss need not hold all of y."""
        if then is not None:
            return then(x, self.to_dense())
        dtype, plan = compute_dtype(x), self.plan
        # Merged in the dtype of the product: where the fp32 rate is a fifteenth of the bf16 rate, as on the H200 of
        # kernel_costs.py, a merge in fp32 would take as long as the product of 15 R tokens.
        core_1, core_2, values = (part.to(dtype) for part in (self.core_1, self.core_2, self.values))
        if are_fp8():  # which keeps the merged weight for the backward pass, in 8 bits a number
            y = linear(x, merge(core_1, core_2, values, self.support, plan.scale).T)
        else:
            x_TN = x.reshape(-1, plan.inputs).to(dtype)
            y = multiply(x_TN, core_1, core_2, values, self.support, plan.scale).view(*x.shape[:-1], plan.outputs)
        return y if self.bias is None else y + self.bias.to(dtype)

    def to_dense(self) -> Tensor:
        """The weight (M, N), as nn.Linear stores it; differentiable."""
        with without_autocast(self.values):
            return merge(self.core_1, self.core_2, self.values, self.support, self.plan.scale).T


class SLTrainFormat(Format):
    """Stores linear layers as a low-rank matrix plus a sparse one; has no tables."""

    name = "sltrain"
    options = SLTrainOptions
    linear_plan = SLTrainPlan

    def options_in(self, section: TensorSection) -> SLTrainOptions:
        own: SLTrainOptions = section.options_of(self.name)
        return own.model_copy(update={"rank": own.rank or section.rank})

    def plan_linear(self, inputs: int, outputs: int, options: SLTrainOptions) -> SLTrainPlan:
        rank = min(given_rank(self.name, options.rank), inputs, outputs)
        entries = max(1, int(options.sparsity * inputs * outputs))
        return SLTrainPlan(inputs, outputs, rank, entries, options.alpha)


SLTRAIN = SLTrainFormat()
