"""The balanced canonical form of a train, and Adam's moments in it.

Shapes: core k is (r_{k-1}, *modes_k, r_k), handled as (A, N, B); T_k is (r_k, r_k). All computation is in float64.

A train has a gauge freedom: C_k → T_{k-1}⁻¹ C_k T_k leaves the weight as it is. In canonical form the indices of every
bond are the singular directions of the weight unfolded there, in descending order (Vidal 2003; Oseledets 2011): cutting
the last ones of a bond changes the weight least. In the balanced form half of each singular value lies to the left and
half to the right, and no gate is needed. In a random train, by contrast, all indices of a bond weigh alike.

A dead direction has a singular value of nearly zero. It is zero on both sides in this form, and no gradient would ever
change that: `revived` gives its left side random numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from comera_dist.formats.base import Draw, LayerState
from comera_dist.formats.gated_layer import opened
from comera_dist.formats.tensor_train.shapes import clip_ranks

# A direction is dead below this share of a bond's largest singular value. Chosen: about ten times the rounding of fp32.
DEAD = 1e-6


@dataclass(frozen=True)
class Gauge:
    """How gradients change with the gauge: ∂L/∂core'_k = left_k · ∂L/∂core_k · right_k along the bonds of core k."""

    left: list[Tensor]
    right: list[Tensor]

    def gradient(self, core: int, gradient_ANB: Tensor) -> Tensor:
        """A gradient, or a mean of gradients, of core number `core` (from 0) in the new gauge."""
        return _apply(self.left[core], gradient_ANB, self.right[core])

    def square(self, core: int, square_ANB: Tensor) -> Tensor:
        """A mean of squared gradients in the new gauge, as if the entries were uncorrelated."""
        return _apply(self.left[core].square(), square_ANB, self.right[core].square())


def balanced_train(state: LayerState, roles: Mapping[str, str], draw: Draw) -> LayerState:
    """`Resizable.balanced` of a train.

    Dead directions are `revived` and get the moments of new indices: 0, or the mean of the squares. The gates' own
    moments begin anew, because they do not follow from the old ones. Other parameters stay as they are.
    """
    cores = [f"core_{k}" for k in range(1, len(state) + 1) if f"core_{k}" in state]
    gates = [f"gate_{k}" for k in range(1, len(cores))]
    new, gauge = balance([state[core]["weight"] for core in cores], [state[gate]["weight"] for gate in gates])
    result, alive = dict(state), alive_ranks(new)
    new = revived(new, lambda k, shape: draw(cores[k], shape).to(new[k]))
    for k, core in enumerate(cores):
        moments = {
            kind: gauge.gradient(k, old) if roles[kind] == "mean" else _square(gauge, k, old, alive)
            for kind, old in state[core].items()
            if kind != "weight"
        }
        result[core] = {"weight": new[k], **moments}
    return result | {gate: opened(state[gate]) for gate in gates}


def _square(gauge: Gauge, k: int, old: Tensor, alive: list[int]) -> Tensor:
    """The mean of squares in the new gauge; dead directions get the mean of the living ones."""
    new = gauge.square(k, old)
    held = new[: alive[k], ..., : alive[k + 1]]
    typical = torch.full_like(new, (held if held.numel() else old).mean().item())
    typical[: alive[k], ..., : alive[k + 1]] = held
    return typical


def balance(cores: list[Tensor], gates: list[Tensor]) -> tuple[list[Tensor], Gauge]:
    """Cores of the same shapes and the same weight in balanced canonical form, gates folded in, and the gauge change.

    Dead directions come last and are zeros; the gauge makes their moments zeros too.
    """
    gated = [core.detach().double().flatten(1, -2).clone() for core in cores]
    for core, gate in zip(gated, gates, strict=False):
        core *= gate.double()
    canonical, inner = _canonical(gated)
    one = gated[0].new_ones(1)
    values = [one, *inner, one]
    balanced = [_padded(_share(core, values[k], values[k + 1]), gated[k].shape) for k, core in enumerate(canonical)]
    gauge = _gauge(gated, balanced, gates)
    return [new.reshape(old.shape).to(old.dtype) for new, old in zip(balanced, cores, strict=True)], gauge


def _canonical(cores: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Left-orthonormal cores, the last one carrying the scale, and the singular values of each inner bond."""
    cores = list(cores)
    for k in range(len(cores) - 1, 0, -1):
        q, r = torch.linalg.qr(cores[k].flatten(1).T)
        cores[k] = q.T.reshape(-1, *cores[k].shape[1:])
        cores[k - 1] = cores[k - 1] @ r.T
    values = []
    for k in range(len(cores) - 1):
        u, s, vh = torch.linalg.svd(cores[k].flatten(0, 1), full_matrices=False)
        cores[k] = u.reshape(*cores[k].shape[:2], -1)
        cores[k + 1] = torch.tensordot(s[:, None] * vh, cores[k + 1], 1)
        values.append(s)
    return cores, values


def _share(core: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """A left-orthonormal core with half of the singular values `left` and `right` of its two bonds."""
    core = torch.where(_is_alive(left), left.clamp_min(1e-300).rsqrt(), 0.0)[:, None, None] * core
    return core * torch.where(_is_alive(right), right.sqrt(), 0.0)


def _is_alive(values: Tensor) -> Tensor:
    return values > DEAD * values.max()


def _padded(core: Tensor, shape: torch.Size) -> Tensor:
    """Zeros for indices beyond the rank that a bond's neighbours can fill."""
    wide = core.new_zeros(shape)
    wide[: core.shape[0], :, : core.shape[2]] = core
    return wide


def alive_ranks(cores: list[Tensor]) -> list[int]:
    """How many directions of each bond of a balanced train are alive; 1 for the outer bonds, even of a zero weight."""
    return [1, *(int(core.flatten(0, -2).any(0).sum()) for core in cores[:-1]), 1]


def revived(cores: list[Tensor], draw: Callable[[int, torch.Size], Tensor]) -> list[Tensor]:
    """A balanced train of the same weight in which the gradient reaches every direction that its neighbours can fill.

    `draw` makes standard normal numbers for a core (number from 0, shape). A dead direction gets them in the core to
    its left, scaled to the root mean square of that core's other entries. It stays zero in the core to its right, whose
    gradient is then not zero. In a train of weight zero all cores but the last are drawn, nearly as isometries.
    Directions that neighbours cannot fill stay zero on both sides: no weight needs them.
    """
    alive = alive_ranks(cores)
    usable = clip_ranks(tuple(core[0, ..., 0].numel() for core in cores), [core.shape[-1] for core in cores[:-1]])
    is_zero = 0 in alive
    result = []
    for k, core in enumerate(cores):
        rows = usable[k] if is_zero else alive[k]
        held = core[:rows, ..., : alive[k + 1]]
        scale = core[:rows, ..., 0].numel() ** -0.5 if is_zero else held.norm() / held.numel() ** 0.5
        new = core.clone()
        dead = new[:rows, ..., alive[k + 1] : usable[k + 1]]
        if dead.numel():
            dead.copy_(draw(k, dead.shape) * scale)
        result.append(new)
    return result


def _gauge(old: list[Tensor], new: list[Tensor], gates: list[Tensor]) -> Gauge:
    """T_k from old_1 … old_k T_k = new_1 … new_k by least squares: T_k = (PᵀP)⁺ PᵀP', with Gram matrices alone."""
    one = old[0].new_ones(1, 1)
    gram, mixed, transforms = one, one, [one]
    for core, balanced in zip(old[:-1], new[:-1], strict=True):
        gram, mixed = _carry(gram, core, core), _carry(mixed, core, balanced)
        transforms.append(torch.linalg.pinv(gram, rtol=1e-10, hermitian=True) @ mixed)
    transforms.append(one)
    right = [torch.linalg.pinv(t, rtol=1e-8).T for t in transforms[1:]]
    for k, gate in enumerate(gates):
        # The old core's gradient is the gradient of its gated form times the gate.
        right[k] = torch.where(gate.double().abs() > DEAD, 1 / gate.double(), 0.0)[:, None] * right[k]
    return Gauge([t.T for t in transforms[:-1]], right)


def _carry(left_AC: Tensor, core_ANB: Tensor, other_CND: Tensor) -> Tensor:
    """Moves a Gram matrix over one more core, from the bond on its left to the one on its right."""
    carried: Tensor = torch.tensordot(left_AC, other_CND, 1)
    return core_ANB.flatten(0, 1).T @ carried.flatten(0, 1)


def _apply(left_XA: Tensor, core_ANB: Tensor, right_BY: Tensor) -> Tensor:
    turned: Tensor = torch.tensordot(left_XA, core_ANB.double().flatten(1, -2), 1)
    return (turned @ right_BY).reshape(core_ANB.shape).to(core_ANB.dtype)
