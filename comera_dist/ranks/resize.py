"""Cuts indices out of bonds, balances what is left and adds new ones: plans, cores, gates and Adam's moments.

Shapes: parameters as their plan's `axes` describe them, gate k is (r_k,), moments are shaped like their parameters.
"""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from comera_dist.formats.base import Axis, LayerState, Resizable
from comera_dist.formats.plan import Plan
from comera_dist.optim.adamw import AdamW
from comera_dist.optim.base import SQUARE
from comera_dist.ranks.decision import Decision
from comera_dist.ranks.layout import GateLayout

Tensors = dict[str, Tensor]  # weight and moments of one parameter, by kind


@dataclass(frozen=True)
class Bond:
    """What becomes of one bond: the old indices that stay, in order, and the number of new ones."""

    kept: Tensor
    added: int

    @property
    def rank(self) -> int:
        return len(self.kept) + self.added


@dataclass(frozen=True)
class Resize:
    """What becomes of every bond of the layers that change, and which layers are brought to balanced canonical form.

    `plans` are those before; `seed` draws the new indices, alike in a resumed run. `roles` says of each kind of moment
    how it changes (see `optim.base.Method.roles`).
    """

    plans: dict[str, Resizable]
    bonds: dict[str, list[Bond]]
    seed: int
    balanced: tuple[str, ...] = ()
    roles: Mapping[str, str] = field(default_factory=lambda: AdamW.roles)

    @classmethod
    def of(
        cls,
        layout: GateLayout,
        decision: Decision,
        seed: int,
        balances: bool = False,
        roles: Mapping[str, str] = AdamW.roles,
    ) -> "Resize":
        """`balances` all adapted layers, whether or not they change."""
        cut, added = layout.gates_by_layer(decision.cut_G), layout.by_layer(decision.added_B)
        changed = [name for name in cut if any(marks.any() for marks in cut[name]) or any(added[name])]
        return cls(
            layout.shapes,
            {
                name: [Bond((~marks).nonzero().flatten(), n) for marks, n in zip(cut[name], added[name], strict=True)]
                for name in changed
            },
            seed,
            tuple(layout.adapted_layers) if balances else (),
            roles,
        )

    def plan(self, plan: Plan) -> Plan:
        """The plan at the new ranks; a layer that has lost all indices of a bond is removed."""
        new = {name: self.plans[name].with_bonds([bond.rank for bond in bonds]) for name, bonds in self.bonds.items()}
        return {name: new.get(name, layer) for name, layer in plan.items()}

    def gates(self, layout: GateLayout, values_G: Tensor, new: float) -> Tensor:
        """One number a gate at the new ranks, in the order of the new layout; added indices get `new`."""
        parts = []
        for name, old in layout.gates_by_layer(values_G).items():
            bonds = self.bonds.get(name)
            if bonds is None:
                parts += old
            elif all(bond.rank for bond in bonds):
                parts += [_append(v[bond.kept], bond.added, 0, new) for v, bond in zip(old, bonds, strict=True)]
        return torch.cat(parts) if parts else values_G[:0]

    def apply_layer(self, layer: str, state: dict[str, Tensors]) -> dict[str, Tensors]:
        """Weights and moments, by name, of all parameters of a layer: cut, then balanced, then grown."""
        if layer not in self.bonds and layer not in self.balanced:
            return state
        local = {name.removeprefix(f"{layer}."): tensors for name, tensors in state.items()}
        return {f"{layer}.{name}": tensors for name, tensors in self._resized(layer, local).items()}

    def _resized(self, layer: str, state: LayerState) -> LayerState:
        plan, bonds = self.plans[layer], self.bonds.get(layer, [])
        if not all(bond.rank for bond in bonds):
            return {name: tensors for name, tensors in state.items() if name == "bias"}
        gates = {f"gate_{k}": (Axis(0, k),) for k in range(1, len(plan.bonds) + 1)}
        axes = plan.axes | gates
        if bonds:
            state = {name: _cut(tensors, axes.get(name, ()), bonds) for name, tensors in state.items()}
        if layer in self.balanced:
            state = plan.balanced(
                state, self.roles, lambda name, size: _draw(f"{self.seed} {layer}.{name} revived", size)
            )
        if not bonds:
            return state
        fills = {name: _fill(tensors, name in gates, self.roles) for name, tensors in state.items()}
        return {
            name: _grown(tensors, axes.get(name, ()), bonds, fills[name], f"{self.seed} {layer}.{name}")
            for name, tensors in state.items()
        }


def _cut(tensors: Tensors, axes: tuple[Axis, ...], bonds: list[Bond]) -> Tensors:
    """Keeps the indices that stay."""
    for axis in axes:
        kept = bonds[axis.bond - 1].kept
        tensors = {kind: values.index_select(axis.dim, kept.to(values.device)) for kind, values in tensors.items()}
    return tensors


def _grown(tensors: Tensors, axes: tuple[Axis, ...], bonds: list[Bond], fill: dict[str, float], key: str) -> Tensors:
    """Adds the new indices, filled with the number of their kind, and draws the weights of axes that are drawn."""
    old = tensors["weight"]
    for axis in axes:
        added = bonds[axis.bond - 1].added
        tensors = {kind: _append(values, added, axis.dim, fill[kind]) for kind, values in tensors.items()}
        if axis.is_drawn and added:
            new = tensors["weight"].narrow(axis.dim, tensors["weight"].shape[axis.dim] - added, added)
            new.copy_(_draw(key, new.shape).to(new) * old.norm() / math.sqrt(max(1, old.numel())))
    return tensors


def _fill(tensors: Tensors, is_gate: bool, roles: Mapping[str, str]) -> dict[str, float]:
    """The number of new indices by kind: they leave the function as it is, with open gates and no moments.

    Squares in cores are the mean of the core's: its other entries have made many steps, and after as many a second
    moment of 0 stands for tiny gradients.
    """
    if is_gate:
        return {kind: float(kind == "weight") for kind in tensors}
    return {kind: values.mean().item() if roles.get(kind) == SQUARE else 0.0 for kind, values in tensors.items()}


def _draw(key: str, shape: torch.Size) -> Tensor:
    """Standard normal numbers that follow from `key`."""
    # One number of 32 bits: PyTorch's CPU generator forgets higher bits of its seed.
    generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    return torch.randn(shape, generator=generator)


def _append(tensor: Tensor, count: int, dim: int, value: float) -> Tensor:
    shape = list(tensor.shape)
    shape[dim] = count
    return torch.cat((tensor, tensor.new_full(shape, value)), dim) if count else tensor.contiguous()
