"""Weights and what the optimizer keeps of them, into and out of every ZeRO stage.

This is the room of DeepSpeed 0.19.8's private attributes: where a stage keeps its fp32 state, and what has to be put
right before that state can be read or written. All functions are collective: every process calls them alike.
"""

import inspect
from collections.abc import Iterator

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

from comera_dist.optim import MOMENTS, adamw_state, blank_state, kept_tensors

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


def optimizer_step(zero) -> int:
    """How many steps AdamW (or GaLore) has made, for its bias correction."""
    inner = getattr(zero, "optimizer", zero)
    return int(next((state["step"] for state in inner.state.values() if "step" in state), 0))


def seed_moments(zero, stage: int, step: int) -> None:
    """Gives a new optimizer the empty state that an optimizer has after `step` steps, ready for `set_moments`."""
    if stage == 0:
        for group in zero.param_groups:
            zero.state.update({parameter: blank_state(group, parameter, step) for parameter in group["params"]})
        return
    parts = zero.fp32_partitioned_groups_flat if stage == 3 else zero.single_partition_of_fp32_groups
    zero.optimizer.state.update({part: adamw_state(part, step) for part in parts})
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
    if not gates or stage == 0:
        return gates, torch.arange(sum(gate.numel() for gate in gates))
    if stage in (1, 2):
        group = next(i for i, group in enumerate(zero.optimizer.param_groups) if group["name"] == "gates")
        size = zero.partition_size[group]
        first = size * torch.distributed.get_rank(zero.real_dp_process_group[group])
        return [zero.single_partition_of_fp32_groups[group]], torch.arange(first, first + size)
    offsets = dict(zip(map(id, gates), torch.tensor([0, *map(whole_size, gates)]).cumsum(0).tolist(), strict=False))
    masters, places = [], []
    for members, master in zip(zero.fp16_groups, zero.fp32_partitioned_groups_flat, strict=True):
        if id(members[0]) in offsets:
            masters.append(master)
            places += [_places(gate, offsets[id(gate)]) for gate in members]
    return masters, torch.cat(places)


def _places(gate: nn.Parameter, offset: int) -> Tensor:
    """Where this process's stage-3 partition of a gate lies; beyond every vector's end where it is padding."""
    size = gate.ds_tensor.ds_numel
    within = torch.arange(size) + size * torch.distributed.get_rank(gate.ds_process_group)
    return torch.where(within < gate.ds_numel, within + offset, torch.iinfo(torch.int64).max)


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
