"""A train in balanced canonical form, with the moments that an optimizer keeps of it.

Shapes: core k is (r_{k-1}, *modes_k, r_k), gate k is (r_k,), moments are shaped like their parameters.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from comera_dist.formats.base import Draw, LayerState
from comera_dist.formats.tensor_train.canonical import Gauge, alive_ranks, balance, revived


def balanced_train(state: LayerState, roles: Mapping[str, str], draw: Draw) -> LayerState:
    """The same weight in balanced canonical form: gates open, moments as the gradients would have been in that form.

    `roles` says of each kind of moment whether it is a "mean" of gradients or of their "square". Directions that hold
    nothing are `revived` by numbers from `draw` and have the moments of new indices: 0, or the mean of the squares. The
    gates' own moments begin anew: they do not follow from the old ones. Other parameters stay as they are.
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
    for gate in gates:
        result[gate] = {kind: torch.full_like(old, float(kind == "weight")) for kind, old in state[gate].items()}
    return result


def _square(gauge: Gauge, k: int, old: Tensor, alive: list[int]) -> Tensor:
    """The mean of squares in the new gauge, with the mean of the core in place of those of dead directions."""
    new = gauge.square(k, old)
    held = new[: alive[k], ..., : alive[k + 1]]
    typical = torch.full_like(new, (held if held.numel() else old).mean().item())
    typical[: alive[k], ..., : alive[k + 1]] = held
    return typical
