"""Where each ZeRO stage keeps weights: fp32 masters that the optimizer updates, and copies that a forward reads.

Only this module uses private attributes of DeepSpeed 0.19.8. "Collective": every process must call the function.
Shapes: L numbers of a process's master.
"""

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol, TypeGuard

import torch
import torch.distributed as dist
from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
from deepspeed.utils import safe_get_full_fp32_param
from torch import Tensor, nn
from torch.optim import Optimizer

from comera_dist.optim.base import Group, Method


class ZeroOptimizer(Protocol):
    """The attributes of DeepSpeed's optimizers that are read here. Each stage has only some of them."""

    param_groups: list[Group]
    optimizer: Optimizer  # from stage 1 on: the optimizer that DeepSpeed calls
    round_robin_bit16_groups: list[list[nn.Parameter]]  # stages 1 and 2
    single_partition_of_fp32_groups: list[Tensor]
    round_robin_bit16_offsets: list[list[int]]
    fp16_groups: list[list[nn.Parameter]]  # stage 3
    fp32_partitioned_groups_flat: list[Tensor]
    sub_group_to_group_id: dict[int, int]


class Partitioned(nn.Parameter):
    """A parameter as stage 3 marks it: whole while its layer runs, or always if it is small (`ds_persist`)."""

    ds_shape: torch.Size
    ds_persist: bool
    ds_tensor: Tensor  # this process's slice
    ds_process_group: dist.ProcessGroup


class Piece(NamedTuple):
    """`size` consecutive numbers of one flat parameter from `start`; a process's master has them from `place`."""

    start: int
    place: int
    size: int

    def of_parameter(self, flat: Tensor) -> Tensor:
        return flat[..., self.start : self.start + self.size]

    def of_master(self, flat: Tensor) -> Tensor:
        return flat[..., self.place : self.place + self.size]


@dataclass(frozen=True, eq=False)
class Part:
    """Parameters of one group, `members`, that the optimizer updates as one tensor, `master`.

    At stage 0 the master is a parameter. At stages 1 and 2 it is this process's slice of all members, laid end to end;
    at stage 3 it holds this process's slices of each member in turn. `pieces` has, for each process that shares the
    part, its piece of each member by the member's number. At stage 0 no process shares it: there is one entry.
    """

    group: Group
    members: list[nn.Parameter]
    master: Tensor
    pieces: list[dict[int, Piece]]

    @property
    def method(self) -> Method:
        method: Method = self.group["method"]
        return method

    @property
    def mine(self) -> dict[int, Piece]:
        """This process's pieces."""
        return self.pieces[dist.get_rank() if len(self.pieces) > 1 else 0]

    def write(self, number: int, held_L: Tensor, whole: Tensor) -> None:
        """Copies this process's piece of member `number` from the whole tensor to `held_L` (laid out as the master)."""
        if number in self.mine:
            piece = self.mine[number]
            piece.of_master(held_L.view(-1)).copy_(piece.of_parameter(whole.flatten()))


def parts(zero: ZeroOptimizer, stage: int) -> list[Part]:
    """All tensors that this process's optimizer updates; all processes have the same parts."""
    if stage == 0:
        members = [(group, parameter) for group in zero.param_groups for parameter in group["params"]]
        return [Part(group, [p], p, [{0: Piece(0, 0, p.numel())}]) for group, p in members]
    groups = zero.optimizer.param_groups
    if stage == 3:
        sub_groups = enumerate(zip(zero.fp16_groups, zero.fp32_partitioned_groups_flat, strict=True))
        return [
            Part(groups[zero.sub_group_to_group_id[k]], members, master, _slices_of_each(members))
            for k, (members, master) in sub_groups
        ]
    flat_groups, masters = zero.round_robin_bit16_groups, zero.single_partition_of_fp32_groups
    sizes = [master.numel() for master in masters]
    slices = map(_slices_of_all, flat_groups, zero.round_robin_bit16_offsets, sizes)
    return [Part(*fields) for fields in zip(groups, flat_groups, masters, slices, strict=True)]


def _slices_of_all(members: list[nn.Parameter], offsets: list[int], size: int) -> list[dict[int, Piece]]:
    """Stages 1 and 2: process p holds numbers p · size … (p + 1) · size of the flat group."""
    return [
        _pieces((p.numel(), process * size - offset, size, 0) for p, offset in zip(members, offsets, strict=True))
        for process in range(dist.get_world_size())
    ]


def _slices_of_each(members: list[nn.Parameter]) -> list[dict[int, Piece]]:
    """Stage 3: every parameter is cut into slices of one length; the last ones are padded."""
    sizes = [p.ds_tensor.numel() for p in members if is_partitioned(p)]
    places = accumulate(sizes, initial=0)
    known = [(whole_shape(p).numel(), size, place) for p, size, place in zip(members, sizes, places, strict=False)]
    return [
        _pieces((numbers, process * size, size, place) for numbers, size, place in known)
        for process in range(dist.get_world_size())
    ]


def _pieces(slices: Iterable[tuple[int, int, int, int]]) -> dict[int, Piece]:
    """For each member: its numbers, the slice's begin (counted from the member's) and size, its place in the master."""
    found = {}
    for number, (numbers, begin, size, place) in enumerate(slices):
        start, end = max(begin, 0), min(begin + size, numbers)
        if start < end:
            found[number] = Piece(start, place + start - begin, end - start)
    return found


def is_partitioned(parameter: nn.Parameter) -> TypeGuard[Partitioned]:
    """Whether stage 3 keeps a slice of the parameter on each process."""
    return hasattr(parameter, "ds_tensor")


def whole_shape(parameter: nn.Parameter) -> torch.Size:
    """Shape of a parameter, also if stage 3 has partitioned it."""
    return parameter.ds_shape if is_partitioned(parameter) else parameter.shape


def local_copy(parameter: nn.Parameter) -> Tensor:
    """The whole parameter as this process sees it. Collective if stage 3 keeps it partitioned."""
    if parameter.shape == whole_shape(parameter):
        return parameter
    whole: Tensor = safe_get_full_fp32_param(parameter)
    return whole


def set_copy(parameter: nn.Parameter, whole: Tensor) -> None:
    """Writes the copy that the next forward reads, but not the master."""
    if is_partitioned(parameter):
        mine = parameter.ds_tensor
        # Not DeepSpeed's safe_set_full_*, which raises on the last process if the numbers do not divide evenly.
        padded = torch.zeros(mine.numel() * dist.get_world_size(parameter.ds_process_group), device=parameter.device)
        padded[: whole.numel()] = whole.flatten()
        mine.data.copy_(padded.view(-1, mine.numel())[dist.get_rank(parameter.ds_process_group)])
    if parameter.shape == whole_shape(parameter):
        parameter.data.copy_(whole)


def is_whole(parameter: nn.Parameter) -> bool:
    """Whether each process keeps the whole parameter between steps. At stage 3 only small ones stay."""
    return not is_partitioned(parameter) or (parameter.ds_persist and parameter.shape == parameter.ds_shape)


def forget_modules() -> None:
    """Releases a closed stage-3 engine from two globals of DeepSpeed, each of which would keep it in memory.

    No forward may be under way in this process. Other stage-3 engines are not affected.
    """
    # Every engine leaves its root module at the bottom of this list, and an aborted forward the modules that it was in.
    FWD_MODULE_STACK.clear()
    # An unlimited lru_cache on a method, shared by all engines: its keys hold the coordinator and every submodule. The
    # decorator around it hides `cache_clear`.
    release = PartitionedParameterCoordinator._PartitionedParameterCoordinator__params_to_release
    inspect.getclosurevars(release).nonlocals["func"].cache_clear()
