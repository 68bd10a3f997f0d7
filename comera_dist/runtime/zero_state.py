"""What every ZeRO stage keeps where: the fp32 masters that the optimizer updates, and the copies that a forward reads.

This is the room of DeepSpeed 0.19.8's private attributes. Collective functions say so.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
from deepspeed.utils import safe_get_full_fp32_param
from torch import Tensor, nn

from comera_dist.optim.base import Method


class Piece(NamedTuple):
    """`size` numbers of one parameter, which begin at `start` of it and at `place` of a process's master."""

    start: int
    place: int
    size: int


@dataclass(frozen=True)
class Part:
    """What the optimizer updates as one tensor, `master`, of the parameters `members` of one parameter group.

    At stage 0 the master is a parameter. At stages 1 and 2 it is this process's slice of all members, flat and in their
    order; at stage 3 it holds this process's slices of each member in turn. `pieces` has, for each process that shares
    the part, its piece of each member by the member's number; at stage 0 every process has all of it for itself.
    """

    group: dict[str, Any]
    members: list[nn.Parameter]
    master: Tensor
    pieces: list[dict[int, Piece]]

    @property
    def method(self) -> Method:
        return self.group["method"]

    @property
    def mine(self) -> dict[int, Piece]:
        """This process's pieces."""
        return self.pieces[dist.get_rank() if len(self.pieces) > 1 else 0]


def parts(zero: Any, stage: int) -> list[Part]:
    """Everything that this process's optimizer updates; all processes have the same parts."""
    if stage == 0:
        return [
            Part(group, [p], p, [{0: Piece(0, 0, p.numel())}]) for group in zero.param_groups for p in group["params"]
        ]
    groups, count = zero.optimizer.param_groups, dist.get_world_size()
    if stage == 3:
        sub_groups = enumerate(zip(zero.fp16_groups, zero.fp32_partitioned_groups_flat, strict=True))
        return [
            Part(groups[zero.sub_group_to_group_id[k]], members, master, _slices_of_each(members, count))
            for k, (members, master) in sub_groups
        ]
    lists = zip(
        groups,
        zero.round_robin_bit16_groups,
        zero.single_partition_of_fp32_groups,
        zero.round_robin_bit16_offsets,
        strict=True,
    )
    return [
        Part(group, members, master, _slices_of_all(members, offsets, master.numel(), count))
        for group, members, master, offsets in lists
    ]


def _slices_of_all(members: list[nn.Parameter], offsets: list[int], size: int, count: int) -> list[dict[int, Piece]]:
    """Stages 1 and 2: process p holds numbers p · size … (p + 1) · size of the flat group."""

    def piece(offset: int, numbers: int, process: int) -> Piece:
        begin, end = max(offset, process * size), min(offset + numbers, (process + 1) * size)
        return Piece(begin - offset, begin - process * size, end - begin)

    return [
        _not_empty(piece(o, p.numel(), process) for o, p in zip(offsets, members, strict=True))
        for process in range(count)
    ]


def _slices_of_each(members: list[nn.Parameter], count: int) -> list[dict[int, Piece]]:
    """Stage 3: every parameter is cut into slices of one length, of which the last ones are padded."""

    def pieces(process: int) -> Iterator[Piece]:
        place = 0
        for parameter in members:
            size = parameter.ds_tensor.ds_numel
            yield Piece(process * size, place, min(size, whole_size(parameter) - process * size))
            place += size

    return [_not_empty(pieces(process)) for process in range(count)]


def _not_empty(pieces: Iterator[Piece]) -> dict[int, Piece]:
    return {number: piece for number, piece in enumerate(pieces) if piece.size > 0}


def whole_size(parameter: nn.Parameter) -> int:
    """Numbers in a parameter, also where stage 3 has partitioned it."""
    return getattr(parameter, "ds_numel", parameter.numel())


def whole_shape(parameter: nn.Parameter) -> torch.Size:
    """Shape of a parameter, also where stage 3 has partitioned it."""
    return getattr(parameter, "ds_shape", parameter.shape)


def local_copy(parameter: nn.Parameter) -> Tensor:
    """The whole parameter as this process sees it. Collective where stage 3 keeps it partitioned."""
    if _is_partitioned(parameter):
        return safe_get_full_fp32_param(parameter)
    return parameter


def set_copy(parameter: nn.Parameter, whole: Tensor) -> None:
    """Writes the copy that the next forward reads; the masters are another matter."""
    if hasattr(parameter, "ds_tensor"):
        parameter.ds_tensor.data.copy_(_partition(parameter, whole))
    if not _is_partitioned(parameter):
        parameter.data.copy_(whole)


def is_whole(parameter: nn.Parameter) -> bool:
    """Whether each process keeps the whole parameter between steps: at stage 3 only small ones stay."""
    return getattr(parameter, "ds_persist", True) and not _is_partitioned(parameter)


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


def _is_partitioned(parameter: nn.Parameter) -> bool:
    return parameter.numel() != whole_size(parameter)


def _partition(parameter: nn.Parameter, whole: Tensor) -> Tensor:
    """This process's slice at stage 3, padded as DeepSpeed pads it."""
    size = parameter.ds_tensor.ds_numel
    group = parameter.ds_process_group
    index, count = dist.get_rank(group), dist.get_world_size(group)
    padded = torch.zeros(size * count, device=parameter.device)
    padded[: whole.numel()] = whole.flatten()
    return padded[index * size : (index + 1) * size]
