"""Block tensor trains: two block-diagonal factors with a permutation between them.

Shapes: T tokens, N in-features in n blocks of c (n·c ≥ N), M out-features in m blocks of b (m·b ≥ M), r rank.
core_1 is (n, c, m, r), core_2 is (m, r, n, b), gate_1 is (r,). Places beyond N and M are padding.

W[(j, b), (i, c)] = Σ_k core_1[i, c, j, k] · gate_1[k] · core_2[j, k, i, b]: each of the n·m blocks (c, b) of the weight
has rank r by itself, so the weight can have full rank. Qiu et al. 2024, "Compute Better Spent: Replacing Dense Layers
with Structured Matrices" (arXiv 2406.06248); with r = 1 the Monarch matrices of Dao et al. 2022.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod, sqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comera_dist.config.fields import Positive, Section
from comera_dist.config.tensor_section import Tensor as TensorSection
from comera_dist.errors import ConfigError
from comera_dist.formats.base import (
    FP32,
    Axis,
    Draw,
    Format,
    FromDense,
    LayerState,
    MatrixPlan,
    Resizable,
    Sizes,
    StepCost,
    Tables,
    Unfoldings,
)
from comera_dist.formats.block_balancing import balanced_blocks, from_blocks
from comera_dist.formats.block_path import Path, cheapest_path, merge_product, path_cost
from comera_dist.formats.block_product import multiply_blocks
from comera_dist.formats.dense import gathered_bytes
from comera_dist.formats.dense_layers import Then
from comera_dist.formats.gated_layer import GatedLayer, never_zero
from comera_dist.formats.removed import RemovedPlan
from comera_dist.formats.tensor_train.factorization import factorize
from comera_dist.ops.autocast import compute_dtype, without_autocast
from comera_dist.ops.products import linear


class BlockTrainOptions(Section):
    """Keys of `tensor.block_train`."""

    rank: Positive = 1
    """Rank of each block."""
    blocks: Positive | None = None
    """Blocks of each factor; null takes as many as make blocks nearly square, and 8 multiply faster in wide layers."""


@dataclass(frozen=True)
class BlockTrainPlan(Resizable, Unfoldings, FromDense):
    """A linear layer N → M, or a table of N rows and width M."""

    inputs: int
    outputs: int
    in_blocks: tuple[int, int]  # n, c
    out_blocks: tuple[int, int]  # m, b
    rank: int
    is_embedding: bool = False
    tag = "block_train"

    def __post_init__(self) -> None:
        sizes = ((self.inputs, self.in_blocks), (self.outputs, self.out_blocks))
        if not all(size <= prod(blocks) and min(blocks) >= 1 for size, blocks in sizes) or self.rank < 1:
            raise ConfigError(
                f"blocks {self.in_blocks} and {self.out_blocks} of rank {self.rank} do not hold {self.inputs} x "
                f"{self.outputs}; take the blocks that plan_blocks chooses"
            )

    @property
    def tensors(self) -> dict[str, Sizes]:
        (n, c), (m, b) = self.in_blocks, self.out_blocks
        return {"core_1": (n, c, m, self.rank), "core_2": (m, self.rank, n, b), "gate_1": (self.rank,)}

    @property
    def flops_per_token(self) -> int:
        """Forward FLOPs of one token through both factors, or of one row."""
        return 2 * self.rank * prod(self.out_blocks) if self.is_embedding else 2 * self.num_parameters

    @property
    def merge_flops(self) -> int:
        """FLOPs of merging both factors to the weight or table."""
        return merge_product(self).flops

    @property
    def axes(self) -> dict[str, tuple[Axis, ...]]:
        return {"core_1": (Axis(3, 1, is_drawn=True),), "core_2": (Axis(1, 1),)}

    @property
    def unfoldings(self) -> dict[str, tuple[int, int, int]]:
        """One matrix for each block: (n, c, m·r) and (m, r·n, b)."""
        (n, c), (m, b) = self.in_blocks, self.out_blocks
        return {"core_1": (n, c, m * self.rank), "core_2": (m, self.rank * n, b)}

    def with_bonds(self, bonds: list[int]) -> MatrixPlan:
        return replace(self, rank=bonds[0]) if bonds[0] else RemovedPlan(self.inputs, self.outputs)

    def largest_bonds(self, bonds: list[int]) -> list[int]:
        """The rank limit of a block (c, b) of the weight."""
        return [min(self.in_blocks[1], self.out_blocks[1])]

    def step_cost(self, tokens: int, device_type: str, itemsize: int, is_head: bool = False) -> StepCost:
        if self.is_embedding:
            m, b = self.out_blocks
            moved = 3 * FP32 * tokens * m * self.rank * (1 + b)
            return StepCost("lookup", 3 * tokens * self.flops_per_token, moved + gathered_bytes(tokens, self.outputs))
        path = "weight" if is_head else cheapest_path(self, tokens, device_type, itemsize)
        return path_cost(self, path, tokens, itemsize)

    def forward_flops(self, tokens: int, device_type: str = "cpu") -> int:
        """FLOPs of a forward pass over `tokens` tokens by the path that the layer takes in fp32."""
        return self.step_cost(tokens, device_type, FP32).flops // 3

    def build(self, std: float, generator: torch.Generator | None, bias: bool = False) -> nn.Module:
        layer = self._blank(bias)
        if generator is not None:
            # The first factor keeps the variance of its input, the second gives the weight's entries the variance std².
            c = self.in_blocks[1]
            nn.init.normal_(layer.core_1, std=c**-0.5, generator=generator)
            nn.init.normal_(layer.core_2, std=std * sqrt(c / self.rank), generator=generator)
        return layer

    def from_dense(self, weight: Tensor, bias: Tensor | None = None) -> nn.Module:
        """The closest weight of this plan: the truncated SVD of each block (Eckart and Young 1936)."""
        (n, c), (m, b) = self.in_blocks, self.out_blocks
        padded = F.pad(self.table_of(weight).double(), (0, m * b - self.outputs, 0, n * c - self.inputs))
        blocks = padded.view(n, c, m, b).transpose(1, 2)  # (n, m, c, b)
        U, S, Vh = torch.linalg.svd(blocks, full_matrices=False)
        half = S[..., : self.rank].sqrt()
        layer = self._blank(bias is not None)
        with torch.no_grad():
            layer.core_1.copy_(from_blocks("core_1", U[..., : self.rank] * never_zero(half)[..., None, :]))
            layer.core_2.copy_(from_blocks("core_2", half[..., None] * Vh[..., : self.rank, :]))
            if bias is not None and layer.bias is not None:
                layer.bias.copy_(bias)
        return layer.to(weight.device)

    def balanced(self, state: LayerState, roles: Mapping[str, str], draw: Draw) -> LayerState:
        """Every block in balanced canonical form: index k of a block is its k-th singular direction."""
        return balanced_blocks(state, roles, draw)

    @property
    def description(self) -> str:
        (n, c), (m, b) = self.in_blocks, self.out_blocks
        return f"{n} blocks of {c} | {m} blocks of {b}"

    def _blank(self, bias: bool) -> "BlockTrain":
        return BlockTrainTable(self) if self.is_embedding else BlockTrainLinear(self, bias)


class BlockTrain(GatedLayer[BlockTrainPlan]):
    """Both factors and their gates."""

    core_1: nn.Parameter
    core_2: nn.Parameter
    gate_1: nn.Parameter

    def to_dense(self) -> Tensor:
        """The weight (M, N) as nn.Linear stores it, or the table (V, D); differentiable."""
        with without_autocast(self.core_1):
            blocks = torch.einsum("icjk,jkib->icjb", self.core_1 * self.gate_1, self.core_2)
        table_NM = blocks.flatten(2).flatten(0, 1)[: self.plan.inputs, : self.plan.outputs]
        return table_NM if self.plan.is_embedding else table_NM.T


class BlockTrainLinear(BlockTrain):
    """y (…, M) of x (…, N), in the dtype of x or of autocast, by the cheaper path for so many tokens."""

    def forward(self, x: Tensor, then: Then | None = None) -> Tensor:
        """y, or then(x, W), so that a loss need not hold all of y."""
        if then is not None:
            return then(x, self.to_dense())
        tokens, itemsize = x.numel() // self.plan.inputs, compute_dtype(x).itemsize
        return self.multiply(x, cheapest_path(self.plan, tokens, x.device.type, itemsize))

    def multiply(self, x: Tensor, path: Path) -> Tensor:
        """y by a path; both give the same."""
        if path == "weight":
            return linear(x, self.to_dense().to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))
        (n, c), dtype = self.plan.in_blocks, compute_dtype(x)
        x_TN = x.reshape(-1, self.plan.inputs).to(dtype)
        if n * c > self.plan.inputs:
            x_TN = F.pad(x_TN, (0, n * c - self.plan.inputs))
        first, second = (self.core_1 * self.gate_1).to(dtype), self.core_2.to(dtype)
        y_TM = multiply_blocks(x_TN.view(-1, n, c), first, second).flatten(1)
        y = y_TM[:, : self.plan.outputs].reshape(*x.shape[:-1], self.plan.outputs)
        return y if self.bias is None else y + self.bias.to(y.dtype)


class BlockTrainTable(BlockTrain):
    """Rows (…, M) of ids (…), in the dtype of the parameters. On a CPU IndexError for an id outside the table."""

    def forward(self, ids: Tensor) -> Tensor:
        (n, c), (m, b), r = self.plan.in_blocks, self.plan.out_blocks, self.plan.rank
        ids_T = ids.flatten()
        rows = (self.core_1 * self.gate_1).reshape(n * c, m * r)[: self.plan.inputs]  # without the padding
        # By F.embedding, whose backward sums sorted rows instead of a slow scatter of single numbers.
        left = F.embedding(ids_T, rows).view(-1, m, 1, r)
        right = F.embedding(ids_T // c, self.core_2.permute(2, 0, 1, 3).reshape(n, m * r * b)).view(-1, m, r, b)
        with without_autocast(left):  # as nn.Embedding, whose rows are those of its weight
            rows_TM = (left @ right).flatten(1)[:, : self.plan.outputs]
        return rows_TM.reshape(*ids.shape, self.plan.outputs)


class BlockTrainFormat(Format, Tables):
    """Stores linear layers and tables as block tensor trains."""

    name = "block_train"
    options = table_options = BlockTrainOptions
    linear_plan = table_plan = BlockTrainPlan

    def plan_linear(self, inputs: int, outputs: int, options: BlockTrainOptions) -> BlockTrainPlan:
        return plan_blocks(inputs, outputs, options.rank, options.blocks)

    def table_options_in(self, section: TensorSection) -> Section:
        return self.options_in(section)

    def plan_table(self, rows: int, width: int, options: BlockTrainOptions) -> BlockTrainPlan:
        return replace(self.plan_linear(rows, width, options), is_embedding=True)


BLOCK_TRAIN = BlockTrainFormat()


def plan_blocks(inputs: int, outputs: int, rank: int, blocks: int | None = None) -> BlockTrainPlan:
    """A plan of two factors with `blocks` blocks each, or with nearly square blocks if None.

    The rank is clipped to the shorter side of a block.
    """

    def split(size: int) -> tuple[int, int]:
        if blocks is None:
            longer, shorter = factorize(size, 2)
            return shorter, longer
        count = min(blocks, size)
        return count, -(-size // count)

    in_blocks, out_blocks = split(inputs), split(outputs)
    return BlockTrainPlan(inputs, outputs, in_blocks, out_blocks, min(rank, in_blocks[1], out_blocks[1]))
