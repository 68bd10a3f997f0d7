"""Carries a decision out on the tensors of a layer: cuts indices, balances what is left and adds new indices.

Shapes: parameters as the `axes` of their plan describe them, gate k is (r_k,), moments like their parameters.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from comera_dist.formats.base import Axis, LayerState
from comera_dist.formats.plan import Plan
from comera_dist.optim.adamw import AdamW
from comera_dist.optim.base import SQUARE
from comera_dist.optim.draws import normals
from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.policy import Decision

Tensors = dict[str, Tensor]  # weight and moments of one parameter, by kind


@dataclass(frozen=True)
class Bond:
    """The change of one bond: the old indices that stay, in order, and the number of new ones."""

    kept: Tensor
    added: int

    @property
    def rank(self) -> int:
        return len(self.kept) + self.added


class Resize:
    """Carries out `decision`, and if it `balances`, brings all adapted layers to balanced canonical form.

    `bonds` has the new bonds of every layer that changes, `balanced` the names of the layers that are balanced. `seed`
    draws the new indices, the same in a resumed run; `roles` says of each kind of moment how it changes (see
    `optim.base.Method.roles`).
    """

    def __init__(
        self,
        layout: GateLayout,
        decision: Decision,
        seed: int,
        balances: bool = False,
        roles: Mapping[str, str] = AdamW.roles,
    ):
        self._layout, self._seed, self._roles = layout, seed, roles
        self.balanced = tuple(layout.adapted_layers) if balances else ()
        cut, added = layout.gates_by_layer(decision.cut_G), layout.by_layer(decision.added_B)
        self.bonds = {
            name: [Bond((~marks).nonzero().flatten(), n) for marks, n in zip(cut[name], added[name], strict=True)]
            for name in layout.shapes
            if any(marks.any() for marks in cut[name]) or any(added[name])
        }

    def plan(self, plan: Plan) -> Plan:
        """The plan at the new ranks; a layer that has lost all indices of a bond is removed."""
        ranks = {name: [bond.rank for bond in bonds] for name, bonds in self.bonds.items()}
        return plan | {name: self._layout.shapes[name].with_bonds(ranks[name]) for name in ranks if name in plan}

    def gates(self, values_G: Tensor, new: float) -> Tensor:
        """The values, one for each gate, in the order of the new layout; added indices get `new`."""
        parts = [values_G[:0]]
        for name, old in self._layout.gates_by_layer(values_G).items():
            bonds = self.bonds.get(name)
            if bonds is None:
                parts += old
            elif all(bond.rank for bond in bonds):
                parts += [_append(v[bond.kept], bond.added, 0, new) for v, bond in zip(old, bonds, strict=True)]
        return torch.cat(parts)

    def apply_layer(self, layer: str, state: dict[str, Tensors]) -> dict[str, Tensors]:
        """Weights and moments, by name, of all parameters of a layer: cut, then balanced, then grown."""
        if layer not in self.bonds and layer not in self.balanced:
            return state
        local = {name.removeprefix(f"{layer}."): tensors for name, tensors in state.items()}
        return {f"{layer}.{name}": tensors for name, tensors in self._resized(layer, local).items()}

    def _resized(self, layer: str, state: LayerState) -> LayerState:
        plan, bonds = self._layout.shapes[layer], self.bonds.get(layer, [])
        if not all(bond.rank for bond in bonds):  # the layer is removed
            return {name: tensors for name, tensors in state.items() if name == "bias"}
        gates = {f"gate_{k}": (Axis(0, k),) for k in range(1, len(plan.bonds) + 1)}
        axes = {name: plan.axes.get(name, gates.get(name, ())) for name in state} if bonds else {}
        if bonds:
            state = {name: _cut(tensors, axes[name], bonds) for name, tensors in state.items()}
        if layer in self.balanced:
            state = plan.balanced(
                state, self._roles, lambda name, shape: normals(f"{self._seed} {layer}.{name} revived", shape)
            )
        if not bonds:
            return state
        fills = {name: _fill(tensors, name in gates, self._roles) for name, tensors in state.items()}
        return {
            name: _grown(tensors, axes[name], bonds, fills[name], f"{self._seed} {layer}.{name}")
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
            new.copy_(normals(key, new.shape).to(new) * old.norm() / math.sqrt(max(1, old.numel())))
    return tensors


def _fill(tensors: Tensors, is_gate: bool, roles: Mapping[str, str]) -> dict[str, float]:
    """The number that fills new indices, by kind: they do not change the function, have open gates and no moments."""
    if is_gate:
        return {kind: float(kind == "weight") for kind in tensors}
    # New second moments are the mean of the core's: after as many steps as the other entries have made, a second moment
    # of 0 would mean tiny gradients, and Adam would make huge steps.
    return {kind: values.mean().item() if roles.get(kind) == SQUARE else 0.0 for kind, values in tensors.items()}


def _append(tensor: Tensor, count: int, dim: int, value: float) -> Tensor:
    shape = list(tensor.shape)
    shape[dim] = count
    return torch.cat((tensor, tensor.new_full(shape, value)), dim) if count else tensor.contiguous()
