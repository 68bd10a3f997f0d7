"""Cuts indices out of bonds, balances what is left and adds new ones: plans, cores, gates and Adam's moments.

Shapes: core k is (r_{k-1}, *modes_k, r_k), gate k is (r_k,), moments are shaped like what they belong to.
"""

import math
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from comera_dist.formats.plan import Plan
from comera_dist.formats.tensor_train.canonical import alive_ranks, balance, revived
from comera_dist.ranks.decision import Decision
from comera_dist.ranks.layout import GateLayout

Tensors = dict[str, Tensor]  # weight, exp_avg and exp_avg_sq of one parameter


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

    `seed` draws the new indices, alike in a resumed run.
    """

    bonds: dict[str, list[Bond]]
    seed: int
    balanced: tuple[str, ...] = ()

    @classmethod
    def of(cls, layout: GateLayout, decision: Decision, seed: int, balances: bool = False) -> "Resize":
        cut, added = layout.gates_by_layer(decision.cut_G), layout.by_layer(decision.added_B)
        changed = [name for name in cut if any(marks.any() for marks in cut[name]) or any(added[name])]
        return cls(
            {
                name: [Bond((~marks).nonzero().flatten(), n) for marks, n in zip(cut[name], added[name], strict=True)]
                for name in changed
            },
            seed,
            tuple(layout.adapted_layers) if balances else (),
        )

    def plan(self, plan: Plan) -> Plan:
        """The plan at the new ranks; a layer that has lost all indices of a bond is removed."""
        return {
            name: layer.with_ranks([bond.rank for bond in self.bonds[name]]) if name in self.bonds else layer
            for name, layer in plan.items()
        }

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
        bonds = self.bonds.get(layer, [])
        cut = Resize({layer: [Bond(bond.kept, 0) for bond in bonds]} if bonds else {}, self.seed)
        state = {name: cut.apply(name, tensors) for name, tensors in state.items()}
        if not all(bond.rank for bond in bonds):
            return {name: tensors for name, tensors in state.items() if name.endswith(".bias")}
        if layer in self.balanced:
            state = balanced_layer(layer, state, self.seed)
        grown = Resize({layer: [Bond(torch.arange(len(bond.kept)), bond.added) for bond in bonds]}, self.seed)
        return {name: grown.apply(name, tensors) for name, tensors in state.items()} if bonds else state

    def apply(self, name: str, tensors: Tensors) -> Tensors:
        """Weight and moments of the parameter called `name` at the new ranks.

        New indices leave the function as it is: random in the core to their left, zero in the core to their right, with
        open gates. Their moments are empty, but for second moments in cores, which are the mean of the core's: other
        entries of the core have made many steps, and after as many a second moment of 0 stands for tiny gradients.
        """
        layer, _, part = name.rpartition(".")
        kind, _, number = part.partition("_")
        if layer not in self.bonds or kind not in ("core", "gate"):
            return tensors
        outer = Bond(torch.zeros(1, dtype=torch.int64), 0)
        bonds = [outer, *self.bonds[layer], outer]
        right = bonds[int(number)]
        if kind == "gate":
            kept = {key: values[right.kept.to(values.device)] for key, values in tensors.items()}
            return {key: _append(v, right.added, -1, float(key == "weight")) for key, v in kept.items()}
        left = bonds[int(number) - 1]
        kept = {key: _select(values, left.kept, right.kept) for key, values in tensors.items()}
        fill = {key: values.mean().item() if key == "exp_avg_sq" else 0.0 for key, values in kept.items()}
        wider = {key: _append(values, right.added, -1, fill[key]) for key, values in kept.items()}
        if right.added:
            new, old = wider["weight"][..., -right.added :], kept["weight"]
            new.copy_(_draw(f"{self.seed} {name}", new.shape).to(new) * old.norm() / math.sqrt(max(1, old.numel())))
        return {key: _append(values, left.added, 0, fill[key]) for key, values in wider.items()}


def balanced_layer(layer: str, state: dict[str, Tensors], seed: int) -> dict[str, Tensors]:
    """A train in balanced canonical form: gates open, and moments as the gradients would have been in that form.

    Directions that hold nothing are `revived` and have the moments of new indices (see `Resize.apply`). The gates' own
    moments begin anew: what they would have been does not follow from the old ones.
    """
    cores = [f"{layer}.core_{k}" for k in range(1, len(state) + 1) if f"{layer}.core_{k}" in state]
    gates = [f"{layer}.gate_{k}" for k in range(1, len(cores))]
    new, gauge = balance([state[core]["weight"] for core in cores], [state[gate]["weight"] for gate in gates])
    result, alive = dict(state), alive_ranks(new)
    new = revived(new, lambda k, shape: _draw(f"{seed} {cores[k]} revived", shape).to(new[k]))
    for k, core in enumerate(cores):
        old = state[core]["exp_avg_sq"]
        first, second = gauge.gradient(k, state[core]["exp_avg"]), gauge.square(k, old)
        held = second[: alive[k], ..., : alive[k + 1]]
        typical = torch.full_like(second, (held if held.numel() else old).mean().item())
        typical[: alive[k], ..., : alive[k + 1]] = held
        result[core] = {"weight": new[k], "exp_avg": first, "exp_avg_sq": typical}
    for gate in gates:
        result[gate] = {key: torch.full_like(old, float(key == "weight")) for key, old in state[gate].items()}
    return result


def _draw(key: str, shape: torch.Size) -> Tensor:
    """Standard normal numbers that follow from `key`."""
    # One number of 32 bits: PyTorch's CPU generator forgets higher bits of its seed.
    generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    return torch.randn(shape, generator=generator)


def _select(core: Tensor, left: Tensor, right: Tensor) -> Tensor:
    return core.index_select(0, left.to(core.device)).index_select(-1, right.to(core.device))


def _append(tensor: Tensor, count: int, dim: int, value: float) -> Tensor:
    shape = list(tensor.shape)
    shape[dim] = count
    return torch.cat((tensor, tensor.new_full(shape, value)), dim) if count else tensor.contiguous()
