"""Brings every block of a block tensor train into balanced canonical form (see tensor_train/canonical.py).

Shapes: n·m blocks (c, b) of the weight, each A (c, r) times B (r, b); cores as in block_train.py.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from comera_dist.formats.base import Draw, LayerState
from comera_dist.formats.gated_layer import opened
from comera_dist.formats.tensor_train.canonical import DEAD

# Orders of dimensions that bring core_1 (n, c, m, r) to (n, m, c, r) and core_2 (m, r, n, b) to (n, m, r, b), and back.
TO_BLOCKS = {"core_1": (0, 2, 1, 3), "core_2": (2, 0, 1, 3)}
FROM_BLOCKS = {"core_1": (0, 2, 1, 3), "core_2": (1, 2, 0, 3)}


def to_blocks(name: str, core: Tensor) -> Tensor:
    """A core, or a moment of it, as one matrix for each block of the weight; float64."""
    return core.double().permute(TO_BLOCKS[name])


def from_blocks(name: str, blocks: Tensor) -> Tensor:
    """The inverse of `to_blocks`, still in float64."""
    return blocks.permute(FROM_BLOCKS[name]).contiguous()


def balanced_blocks(state: LayerState, roles: Mapping[str, str], draw: Draw) -> LayerState:
    """`Resizable.balanced` of a block tensor train.

    Dead directions get random numbers in core_1 and zeros in core_2, and the mean square of the others.
    """
    gate = state["gate_1"]["weight"].double()
    A, B = to_blocks("core_1", state["core_1"]["weight"]) * gate, to_blocks("core_2", state["core_2"]["weight"])
    (Q_left, R_left), (Q_right, R_right) = torch.linalg.qr(A), torch.linalg.qr(B.mT)
    U, S, Vh = torch.linalg.svd(R_left @ R_right.mT)
    alive = DEAD * S.amax(-1, keepdim=True) < S
    half = torch.where(alive, S, 0.0).sqrt()
    new_A, new_B = Q_left @ U * half[..., None, :], half[..., None] * (Vh @ Q_right.mT)
    scale = new_A.square().sum() / (alive.sum() * A.shape[-2]).clamp_min(1) if alive.any() else 1 / A.shape[-2]
    weight = state["core_1"]["weight"]
    noise = to_blocks("core_1", draw("core_1", weight.shape).to(weight)) * scale**0.5  # drawn on the CPU
    # A @ T = new_A; ∂L/∂new_A = ∂L/∂core_1 / gate @ T⁻ᵀ and ∂L/∂new_B = Tᵀ @ ∂L/∂core_2.
    T = torch.linalg.pinv(R_left, rtol=1e-8) @ U * half[..., None, :]
    inverse = torch.where(gate.abs() > DEAD, 1 / gate, 0.0)[:, None] * torch.linalg.pinv(T, rtol=1e-8).mT

    def moved(name: str, kind: str, old: Tensor) -> Tensor:
        power = 1 if roles[kind] == "mean" else 2
        blocks = to_blocks(name, old)
        new = blocks @ inverse.pow(power) if name == "core_1" else T.mT.pow(power) @ blocks
        mask = alive[..., None, :] if name == "core_1" else alive[..., None]
        return new if power == 1 else _typical(new, mask)

    result = {**state, "gate_1": opened(state["gate_1"])}
    for name, weight in (("core_1", torch.where(alive[..., None, :], new_A, noise)), ("core_2", new_B)):
        tensors = {k: weight if k == "weight" else moved(name, k, old) for k, old in state[name].items()}
        result[name] = {k: from_blocks(name, new).to(state[name][k]) for k, new in tensors.items()}
    return result


def _typical(square: Tensor, alive: Tensor) -> Tensor:
    """Squares with the mean of the living directions in place of those of dead ones."""
    mask = alive.expand_as(square)
    return torch.where(mask, square, square[mask].mean() if mask.any() else square.mean())
