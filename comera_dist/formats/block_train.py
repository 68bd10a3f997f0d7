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
from comera_dist.config.tree import Tensor as TensorSection
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
from comera_dist.formats.dense import gathered_bytes, product_cost
from comera_dist.formats.dense_layers import Then
from comera_dist.formats.removed import RemovedPlan
from comera_dist.formats.tensor_train.factorization import factorize
from comera_dist.ops.autocast import compute_dtype

DEAD = 1e-6  # share of a block's largest singular value under which a direction holds nothing but rounding


class BlockTrainOptions(Section):
    """Rank of each block, and how many blocks each factor has; None: as many as make blocks nearly square."""

    rank: Positive = 1
    """Rank of each block."""
    blocks: Positive | None = None
    """Blocks of each factor; null takes as many as make the blocks nearly square."""


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
                f"{self.outputs}; take those of plan_blocks"
            )

    @property
    def bonds(self) -> Sizes:  # type: ignore[override]
        return (self.rank,)

    @property
    def tensors(self) -> dict[str, Sizes]:
        (n, c), (m, b) = self.in_blocks, self.out_blocks
        return {"core_1": (n, c, m, self.rank), "core_2": (m, self.rank, n, b), "gate_1": (self.rank,)}

    @property
    def core_sizes(self) -> Sizes:
        (n, c), (m, b) = self.in_blocks, self.out_blocks
        return n * c * m, m * n * b

    @property
    def num_parameters(self) -> int:  # type: ignore[override]
        return self.rank * sum(self.core_sizes)

    @property
    def flops_per_token(self) -> int:  # type: ignore[override]
        return 2 * self.rank * prod(self.out_blocks) if self.is_embedding else 2 * self.num_parameters

    @property
    def axes(self) -> dict[str, tuple[Axis, ...]]:
        return {"core_1": (Axis(3, 1, is_drawn=True),), "core_2": (Axis(1, 1),)}

    @property
    def unfoldings(self) -> dict[str, tuple[int, int, int]]:
        """One matrix a block: (n, c, m·r) and (m, r·n, b)."""
        (n, c), (m, b) = self.in_blocks, self.out_blocks
        return {"core_1": (n, c, m * self.rank), "core_2": (m, self.rank * n, b)}

    def with_bonds(self, bonds: list[int]) -> MatrixPlan:
        return replace(self, rank=bonds[0]) if bonds[0] else RemovedPlan(self.inputs, self.outputs)

    def largest_bonds(self, bonds: list[int]) -> list[int]:
        """A block (c, b) has no higher rank than its shorter side."""
        return [min(self.in_blocks[1], self.out_blocks[1])]

    def step_cost(self, tokens: int, device_type: str, itemsize: int, is_head: bool = False) -> StepCost:
        (n, c), (m, b), r = self.in_blocks, self.out_blocks, self.rank
        if self.is_embedding:
            moved = 3 * FP32 * tokens * m * r * (1 + b)
            return StepCost("lookup", 3 * tokens * self.flops_per_token, moved + gathered_bytes(tokens, self.outputs))
        if is_head:
            merge = product_cost(self.inputs, r, self.outputs, FP32)
            dense = product_cost(tokens, self.inputs, self.outputs, itemsize)
            return StepCost("merged weight", merge[0] + dense[0], merge[1] + dense[1])
        # The intermediate (T, n·m·r) is written once more, in the order of the second factor's blocks.
        moved = tokens * (n * c + 4 * n * m * r + m * b) + self.num_parameters
        return StepCost("blocks", 3 * tokens * self.flops_per_token, 3 * itemsize * moved)

    def build(self, std: float, generator: torch.Generator | None, bias: bool = False) -> nn.Module:
        layer = BlockTrainTable(self) if self.is_embedding else BlockTrainLinear(self, bias)
        if generator is not None:
            _draw(layer, std, generator)
        return layer

    def from_dense(self, weight: Tensor, bias: Tensor | None = None) -> nn.Module:
        """The closest weight of this plan: the truncated SVD of each block (Eckart and Young 1936)."""
        size = (self.inputs, self.outputs) if self.is_embedding else (self.outputs, self.inputs)
        if tuple(weight.shape) != size:
            raise ConfigError(
                f"a weight of size {tuple(weight.shape)} was given, expected {size}; plan it for this weight"
            )
        layer = BlockTrainTable(self) if self.is_embedding else BlockTrainLinear(self, bias is not None)
        left, right = _split(_blocks_of(weight if self.is_embedding else weight.T, self), self.rank)
        with torch.no_grad():
            layer.core_1.copy_(left.permute(0, 2, 1, 3))
            layer.core_2.copy_(right.permute(1, 2, 0, 3))
            if bias is not None:
                layer.bias.copy_(bias)
        return layer.to(weight.device)

    def balanced(self, state: LayerState, roles: Mapping[str, str], draw: Draw) -> LayerState:
        """Every block in balanced canonical form: index k of a block is its k-th singular direction."""
        return _balanced(state, roles, draw)

    @property
    def description(self) -> str:
        (n, c), (m, b) = self.in_blocks, self.out_blocks
        return f"{n} blocks of {c} | {m} blocks of {b}"


class _BlockTrain(nn.Module):
    """core_1, core_2 and gate_1; without values until they are drawn or loaded, but for open gates."""

    def __init__(self, plan: BlockTrainPlan):
        super().__init__()
        self.plan = plan
        self.core_1 = nn.Parameter(torch.empty(plan.tensors["core_1"]))
        self.core_2 = nn.Parameter(torch.empty(plan.tensors["core_2"]))
        self.gate_1 = nn.Parameter(torch.ones(plan.rank))

    @property
    def gates(self) -> list[nn.Parameter]:
        return [self.gate_1]

    def _table(self) -> Tensor:
        """Wᵀ (N, M)."""
        with torch.autocast(self.core_1.device.type, enabled=False):
            blocks = torch.einsum("icjk,jkib->icjb", self.core_1 * self.gate_1, self.core_2)
        return blocks.flatten(2).flatten(0, 1)[: self.plan.inputs, : self.plan.outputs]

    def extra_repr(self) -> str:
        return f"{self.plan.inputs} → {self.plan.outputs}, {self.plan.description}, rank {self.plan.rank}"


class BlockTrainLinear(_BlockTrain):
    """y (…, M) of x (…, N), in the dtype of x or of autocast; two batched products with a permutation between."""

    def __init__(self, plan: BlockTrainPlan, bias: bool = False):
        super().__init__(plan)
        self.bias = nn.Parameter(torch.zeros(plan.outputs)) if bias else None

    def forward(self, x: Tensor, then: Then | None = None) -> Tensor:
        """y, or then(x, W), so that a loss need not hold all of y."""
        if then is not None:
            return then(x, self.to_dense())
        (n, c), (m, _), dtype = self.plan.in_blocks, self.plan.out_blocks, compute_dtype(x)
        x_TN = F.pad(x.reshape(-1, self.plan.inputs).to(dtype), (0, n * c - self.plan.inputs))
        first = (self.core_1 * self.gate_1).flatten(2).to(dtype)  # (n, c, m·r)
        second = self.core_2.flatten(1, 2).to(dtype)  # (m, r·n, b)
        narrow = torch.bmm(x_TN.unflatten(1, (n, c)).transpose(0, 1), first)  # (n, T, m·r)
        regrouped = narrow.unflatten(2, (m, -1)).permute(2, 1, 3, 0).flatten(2)  # (m, T, r·n)
        y_TM = torch.bmm(regrouped, second).transpose(0, 1).flatten(1)[:, : self.plan.outputs]
        y = y_TM.reshape(*x.shape[:-1], self.plan.outputs)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def to_dense(self) -> Tensor:
        """The weight (M, N), as nn.Linear stores it; differentiable."""
        return self._table().T


class BlockTrainTable(_BlockTrain):
    """Rows (…, M) of ids (…)."""

    def forward(self, ids: Tensor) -> Tensor:
        (n, c), (m, b), r = self.plan.in_blocks, self.plan.out_blocks, self.plan.rank
        ids_T = ids.flatten()
        # By F.embedding, whose backward sums sorted rows instead of a slow scatter of single numbers.
        left = F.embedding(ids_T, (self.core_1 * self.gate_1).reshape(n * c, m * r)).view(-1, m, 1, r)
        right = F.embedding(ids_T // c, self.core_2.permute(2, 0, 1, 3).reshape(n, m * r * b)).view(-1, m, r, b)
        return (left @ right).flatten(1)[:, : self.plan.outputs].reshape(*ids.shape, self.plan.outputs)

    def to_dense(self) -> Tensor:
        """The whole table (V, D); differentiable."""
        return self._table()


class BlockTrainFormat(Format, Tables):
    """Stores linear layers and tables as block tensor trains."""

    name = "block_train"
    options = table_options = BlockTrainOptions
    linear_plan = table_plan = BlockTrainPlan

    def plan_linear(self, inputs: int, outputs: int, options: BlockTrainOptions) -> BlockTrainPlan:
        return plan_blocks(inputs, outputs, options.rank, options.blocks)

    def table_options_in(self, section: TensorSection) -> BlockTrainOptions:
        return self.options_in(section)

    def plan_table(self, rows: int, width: int, options: BlockTrainOptions) -> BlockTrainPlan:
        return replace(self.plan_linear(rows, width, options), is_embedding=True)


BLOCK_TRAIN = BlockTrainFormat()


def plan_blocks(inputs: int, outputs: int, rank: int, blocks: int | None = None) -> BlockTrainPlan:
    """A plan of two factors with `blocks` blocks each, or with blocks that are nearly square.

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


def _draw(layer: _BlockTrain, std: float, generator: torch.Generator) -> None:
    """The first factor keeps the variance of its input, the second gives the weight's entries the variance std²."""
    (_, c), rank = layer.plan.in_blocks, layer.plan.rank
    nn.init.normal_(layer.core_1, std=c**-0.5, generator=generator)
    nn.init.normal_(layer.core_2, std=std * sqrt(c / rank), generator=generator)


def _blocks_of(table_NM: Tensor, plan: BlockTrainPlan) -> Tensor:
    """The blocks (n, m, c, b) of a matrix (N, M), padded by zeros; float64."""
    (n, c), (m, b) = plan.in_blocks, plan.out_blocks
    padded = F.pad(table_NM.detach().double(), (0, m * b - plan.outputs, 0, n * c - plan.inputs))
    return padded.view(n, c, m, b).transpose(1, 2)


def _split(blocks: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """(…, c, r) and (…, r, b), each with half of the singular values."""
    U, S, Vh = torch.linalg.svd(blocks, full_matrices=False)
    half = S[..., :rank].sqrt()
    return U[..., :rank] * half[..., None, :], half[..., None] * Vh[..., :rank, :]


def _balanced(state: LayerState, roles: Mapping[str, str], draw: Draw) -> LayerState:
    """As `Resizable.balanced`; A (n, m, c, r) with gates and B (n, m, r, b) are the factors of all blocks, float64."""
    gate = state["gate_1"]["weight"].double()
    A = _left(state["core_1"]["weight"]) * gate
    B = _right(state["core_2"]["weight"])
    (Q_left, R_left), (Q_right, R_right) = torch.linalg.qr(A), torch.linalg.qr(B.mT)
    U, S, Vh = torch.linalg.svd(R_left @ R_right.mT)
    alive = DEAD * S.amax(-1, keepdim=True) < S
    half = torch.where(alive, S, 0.0).sqrt()
    new_A, new_B = Q_left @ U * half[..., None, :], half[..., None] * (Vh @ Q_right.mT)
    # A @ T = new_A; ∂L/∂new_A = ∂L/∂core_1 / gate @ T⁻ᵀ and ∂L/∂new_B = Tᵀ @ ∂L/∂core_2.
    T = torch.linalg.pinv(R_left, rtol=1e-8) @ U * half[..., None, :]
    inverse = torch.where(gate.abs() > DEAD, 1 / gate, 0.0)[:, None] * torch.linalg.pinv(T, rtol=1e-8).mT
    scale = new_A.square().sum() / (alive.sum() * A.shape[-2]).clamp_min(1) if alive.any() else 1 / A.shape[-2]
    noise = _left(draw("core_1", state["core_1"]["weight"].shape).double()) * scale**0.5
    weights = {"core_1": torch.where(alive[..., None, :], new_A, noise), "core_2": new_B}
    result = dict(state)
    for name, moved, mask in (
        ("core_1", lambda g, power: _left(g) @ inverse.pow(power), alive[..., None, :]),
        ("core_2", lambda g, power: T.mT.pow(power) @ _right(g), alive[..., None]),
    ):
        back = _unleft if name == "core_1" else _unright
        tensors = {"weight": weights[name]}
        for kind, old in state[name].items():
            if kind != "weight":
                tensors[kind] = moved(old, 1) if roles[kind] == "mean" else _typical(moved(old, 2), mask)
        result[name] = {kind: back(new).to(state[name][kind]) for kind, new in tensors.items()}
    result["gate_1"] = {k: torch.full_like(old, float(k == "weight")) for k, old in state["gate_1"].items()}
    return result


def _typical(square: Tensor, alive: Tensor) -> Tensor:
    """Squares with the mean of the others in place of those of dead directions."""
    mask = alive.expand_as(square)
    return torch.where(mask, square, square[mask].mean() if mask.any() else square.mean())


def _left(core_1: Tensor) -> Tensor:
    """(n, c, m, r) as one matrix (c, r) a block: (n, m, c, r)."""
    return core_1.double().transpose(1, 2)


def _unleft(blocks: Tensor) -> Tensor:
    return blocks.transpose(1, 2).contiguous()


def _right(core_2: Tensor) -> Tensor:
    """(m, r, n, b) as one matrix (r, b) a block: (n, m, r, b)."""
    return core_2.double().permute(2, 0, 1, 3)


def _unright(blocks: Tensor) -> Tensor:
    return blocks.permute(1, 2, 0, 3).contiguous()
