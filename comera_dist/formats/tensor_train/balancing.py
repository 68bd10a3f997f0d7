"""A train in balanced canonical form, with the moments that an optimizer keeps of it.

Shapes: core k is (r_{k-1}, *modes_k, r_k), gate k is (r_k,), moments are shaped like their parameters.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from comera_dist.formats.base import Draw, LayerState
from comera_dist.formats.gated_layer import opened
from comera_dist.formats.tensor_train.canonical import Gauge, alive_ranks, balance, revived


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
