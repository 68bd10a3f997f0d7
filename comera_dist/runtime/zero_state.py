"""Weights and what the optimizer keeps of them, into and out of every ZeRO stage.

This is the room of DeepSpeed 0.19.8's private attributes: where a stage keeps its fp32 state, and what has to be put
right before that state can be read or written. All functions are collective: every process calls them alike.
"""

import inspect
from collections.abc import Iterator
from typing import NamedTuple

import torch
from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)
from torch import Tensor, nn

from comera_dist.optim import MOMENTS, blank_state, kept_tensors

KINDS = ("weight", *MOMENTS)


def link_moments(zero) -> None:
    """Ties every parameter to its slice of Adam's state; DeepSpeed itself ties only the first group's (stages 1, 2)."""
    zero._hp_optimizer_states_linked = False
    zero._lazy_init_hp_params_optimizer_state()


def gather(zero, stage: int) -> Iterator[tuple[nn.Parameter, str, Tensor]]:
    """Whole fp32 tensors by parameter and kind: `weight`, `exp_avg` and `exp_avg_sq`; at stage 0, where AdamW is not
    the only optimizer, `weight` and the kinds of `kept_tensors`."""
    if stage:
        for kind in KINDS:
            yield from _gather_parts(zero, stage, kind)
        return
    for parameter in (p for group in zero.param_groups for p in group["params"]):
        assert zero.state[parameter], "the optimizer has made no step with this parameter"
        for kind, tensor in {"weight": parameter.detach(), **kept_tensors(zero.state[parameter])}.items():
            yield parameter, kind, tensor


def _gather_parts(zero, stage: int, kind: str) -> Iterator[tuple[nn.Parameter, str, Tensor]]:
    """One collective a parameter group."""
    groups = zero.fp16_groups if stage == 3 else zero.bit16_groups
    parts = zero.fp32_partitioned_groups_flat if stage == 3 else zero.single_partition_of_fp32_groups
    for members, part in zip(groups, parts, strict=True):
        whole_PL = _from_all_processes(part.detach() if kind == "weight" else zero.optimizer.state[part][kind])
        offset = 0
        for parameter in members:
            if stage == 3:
                # Each process has its slice of every parameter, padded to equal lengths.
                size, shape = parameter.ds_tensor.ds_numel, parameter.ds_shape
                flat = whole_PL[:, offset : offset + size].reshape(-1)[: parameter.ds_numel]
            else:
                size, shape = parameter.numel(), parameter.shape
                flat = whole_PL.view(-1)[offset : offset + size]
            yield parameter, kind, flat.view(shape)
            offset += size


def _from_all_processes(part_L: Tensor) -> Tensor:
    """Every process's part (P, L)."""
    parts = part_L.new_empty(torch.distributed.get_world_size(), part_L.numel())
    torch.distributed.all_gather_into_tensor(parts.view(-1), part_L.contiguous())
    return parts


class _Part(NamedTuple):
    """What this process updates as one tensor, `master`, of the parameters `members` of one group.

    At stage 0 the master is a parameter; at stages 1 and 2 a slice of all members, flat and in this order; at stage 3
    slices of each member in turn.
    """

    group: dict
    members: list[nn.Parameter]
    master: Tensor


def _parts(zero, stage: int) -> list[_Part]:
    if stage == 0:
        return [_Part(group, [p], p) for group in zero.param_groups for p in group["params"]]
    groups = zero.optimizer.param_groups
    if stage == 3:
        sub_groups = enumerate(zip(zero.fp16_groups, zero.fp32_partitioned_groups_flat, strict=True))
        return [_Part(groups[zero.sub_group_to_group_id[k]], members, master) for k, (members, master) in sub_groups]
    lists = zip(groups, zero.round_robin_bit16_groups, zero.single_partition_of_fp32_groups, strict=True)
    return [_Part(*part) for part in lists]


def _states(zero, stage: int, of_gates: bool) -> Iterator[dict]:
    """The optimizer's state of each part of the group `gates`, or of all other parts, that counts its steps."""
    inner = getattr(zero, "optimizer", zero)
    for part in _parts(zero, stage):
        if (part.group["name"] == "gates") == of_gates and "step" in inner.state[part.master]:
            yield inner.state[part.master]


def optimizer_step(zero, stage: int) -> int:
    """How many steps AdamW (or GaLore) has made, for its bias correction; those of gates have a count of their own."""
    return int(next((state["step"] for state in _states(zero, stage, of_gates=False)), 0))


def gate_step(zero, stage: int) -> int:
    """How many steps the group `gates` has made since `restart_gates`; those of the optimizer where it is empty."""
    states = _states(zero, stage, of_gates=True)
    return int(next((state["step"] for state in states), optimizer_step(zero, stage)))


def restart_gates(zero, stage: int) -> None:
    """Sets the step count of the group `gates` to 0, in place, because a CUDA graph may read it."""
    for state in _states(zero, stage, of_gates=True):
        state["step"].zero_()


def seed_moments(zero, stage: int, step: int, gate_step: int) -> None:
    """Gives a new optimizer the empty state that an optimizer has after `step` steps, ready for `set_moments`.

    `gate_step` is the count of the group `gates`.
    """
    inner = getattr(zero, "optimizer", zero)
    for group, _, master in _parts(zero, stage):
        inner.state[master] = blank_state(group, master, gate_step if group["name"] == "gates" else step)
    if stage in (1, 2):
        link_moments(zero)


def set_weight(zero, stage: int, parameter: nn.Parameter, whole: Tensor) -> None:
    """Writes one parameter: what the optimizer updates and what the next forward reads."""
    whole = whole.to(parameter.device)
    if stage in (1, 2):
        safe_set_full_fp32_param(parameter, whole)
    elif stage == 3:
        safe_set_local_fp32_param(parameter, _partition(parameter, whole))
    set_copy(parameter, whole)


def moment_shapes(zero, stage: int, parameter: nn.Parameter, whole: torch.Size) -> dict[str, torch.Size]:
    """What `set_moments` takes of a parameter of shape `whole`: shapes by kind."""
    if stage == 0:
        return {kind: tensor.shape for kind, tensor in kept_tensors(zero.state[parameter]).items()}
    return dict.fromkeys(MOMENTS, whole)


def set_moments(zero, stage: int, parameter: nn.Parameter, moments: dict[str, Tensor]) -> None:
    """Writes this process's part of what the optimizer keeps of one parameter; `moments` holds the whole tensors."""
    if stage == 0:
        for kind, tensor in kept_tensors(zero.state[parameter]).items():
            tensor.copy_(moments[kind])
        return
    for key in MOMENTS:
        if stage in (1, 2):
            safe_set_full_optimizer_state(parameter, moments[key].to(parameter.device), key)
        else:
            safe_set_local_optimizer_state(parameter, _partition(parameter, moments[key]), key)


def gate_masters(zero, stage: int, gates: list[nn.Parameter]) -> tuple[list[Tensor], Tensor]:
    """What the optimizer updates of the gates on this process, and where it lies on the flat vector of all gates.

    Places beyond the end are padding.
    """
    sizes = [whole_size(gate) for gate in gates]
    places = dict(zip(map(id, gates), torch.arange(sum(sizes)).split(sizes), strict=True))
    parts = [part for part in _parts(zero, stage) if id(part.members[0]) in places]
    held = [_held_places(part, stage, [places[id(gate)] for gate in part.members]) for part in parts]
    return [part.master for part in parts], torch.cat([torch.zeros(0, dtype=torch.int64), *held])


def _held_places(part: _Part, stage: int, places: list[Tensor]) -> Tensor:
    """Those of `places`, a tensor a member, that the master of this process holds, in its order."""
    if stage == 0:
        return places[0]
    if stage == 3:
        return torch.cat([_own_slice(p, gate.ds_tensor.ds_numel) for p, gate in zip(places, part.members, strict=True)])
    return _own_slice(torch.cat(places), part.master.numel())


def _own_slice(places: Tensor, size: int) -> Tensor:
    """This process's slice of `size`; beyond every vector's end where the last slices are padding."""
    mine = places[size * torch.distributed.get_rank() :][:size]
    return torch.cat((mine, mine.new_full((size - len(mine),), torch.iinfo(mine.dtype).max)))


def whole_size(parameter: nn.Parameter) -> int:
    """Numbers in a parameter, also where stage 3 has partitioned it."""
    return getattr(parameter, "ds_numel", parameter.numel())


def local_copy(parameter: nn.Parameter) -> Tensor:
    """The whole parameter as this process sees it. Collective where stage 3 keeps it partitioned."""
    if _is_partitioned(parameter):
        return safe_get_full_fp32_param(parameter)
    return parameter


def set_copy(parameter: nn.Parameter, whole: Tensor) -> None:
    """Writes what the next forward reads; the masters are another matter."""
    if hasattr(parameter, "ds_tensor"):
        parameter.ds_tensor.data.copy_(_partition(parameter, whole))
    if not _is_partitioned(parameter):
        parameter.data.copy_(whole)


def forget_modules() -> None:
    """Makes DeepSpeed let go of a closed stage-3 engine: either of these two would keep all of it in memory.

    No forward may be under way in this process; other stage-3 engines go on unharmed.
    """
    # Every engine leaves its root module at the bottom of this list, an aborted forward also those it was in.
    FWD_MODULE_STACK.clear()
    # The lru_cache of a method, unlimited and one for all engines: its keys hold the coordinator and every submodule.
    # The decorator around it hides `cache_clear`.
    release = PartitionedParameterCoordinator._PartitionedParameterCoordinator__params_to_release
    inspect.getclosurevars(release).nonlocals["func"].cache_clear()


def is_whole(parameter: nn.Parameter) -> bool:
    """Whether each process keeps the whole parameter between steps: at stage 3 only small ones stay."""
    return getattr(parameter, "ds_persist", True) and not _is_partitioned(parameter)


def _is_partitioned(parameter: nn.Parameter) -> bool:
    return parameter.numel() != whole_size(parameter)


def _partition(parameter: nn.Parameter, whole: Tensor) -> Tensor:
    """This process's slice at stage 3, padded as DeepSpeed pads it (its own setter fails where sizes do not divide)."""
    size = parameter.ds_tensor.ds_numel
    group = parameter.ds_process_group
    index, count = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    padded = torch.zeros(size * count, device=parameter.device)
    padded[: whole.numel()] = whole.flatten()
    return padded[index * size : (index + 1) * size]
