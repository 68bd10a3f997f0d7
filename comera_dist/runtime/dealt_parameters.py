"""Whole parameters at ZeRO stages above 0, for optimizers that cannot step slices.

Each process owns some parameters of a part. At a step every process sends its pieces of weights and gradients to the
owners, which step whole parameters, and gets back the new weights of its own pieces: two all-to-alls, which together
move three numbers for each number of a slice. The owner's state stays where it is.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from comera_dist.runtime.zero_state import Part, Piece, whole_shape

WEIGHT, GRADIENT = 0, 1


class DealtParameters:
    """The hand of this process (see `optim.combined.Hand`); `owners` has the owner of each member of the part.

    `owned` are the parameters that the optimizer steps, and the keys of its state, by the member's number. Between
    steps they have a shape but take no memory.
    """

    def __init__(self, part: Part, owners: list[int]):
        self._part, self._owners = part, owners
        self.owned = {number: nn.Parameter(self._empty(number)) for number in self.owned_by(dist.get_rank())}

    def owned_by(self, process: int) -> list[int]:
        """Numbers of the members that a process owns."""
        return [number for number, owner in enumerate(self._owners) if owner == process]

    def collect(self) -> list[nn.Parameter]:
        """The owned parameters, with weights and gradients of this step. Collective."""
        both_2L = torch.stack((self._part.master.detach(), self._part.master.grad))
        sent = [both_2L[:, p.place : p.place + p.size].flatten() for _, p in self._outgoing()]
        wholes = {number: both_2L.new_empty(2, parameter.numel()) for number, parameter in self.owned.items()}
        for (number, piece), values in zip(self._incoming(), self._exchange(sent, 2, to_owners=True), strict=True):
            wholes[number][:, piece.start : piece.start + piece.size] = values.view(2, piece.size)
        for number, parameter in self.owned.items():
            parameter.data = wholes[number][WEIGHT].view(parameter.shape)
            parameter.grad = wholes[number][GRADIENT].view(parameter.shape)
        return list(self.owned.values())

    def hand_back(self) -> None:
        """Writes the new weights to the slices on all processes, and frees those here. Collective."""
        flat = {number: parameter.detach().view(-1) for number, parameter in self.owned.items()}
        sent = [flat[number][piece.start : piece.start + piece.size] for number, piece in self._incoming()]
        for (_, piece), values in zip(self._outgoing(), self._exchange(sent, 1, to_owners=False), strict=True):
            self._part.master.detach()[piece.place : piece.place + piece.size] = values
        for number, parameter in self.owned.items():
            parameter.grad, parameter.data = None, self._empty(number)

    def _empty(self, number: int) -> Tensor:
        return self._part.master.new_zeros(()).expand(whole_shape(self._part.members[number]))

    def _outgoing(self) -> Iterator[tuple[int, Piece]]:
        """Member and piece of all that lies in this process's slice, by owner."""
        for owner in range(dist.get_world_size()):
            yield from ((number, piece) for number, piece in self._part.mine.items() if self._owners[number] == owner)

    def _incoming(self) -> Iterator[tuple[int, Piece]]:
        """Member and piece of all that this process owns, by the process in whose slice it lies."""
        for pieces in self._part.pieces:
            yield from ((number, piece) for number, piece in pieces.items() if number in self.owned)

    def _exchange(self, sent: list[Tensor], width: int, to_owners: bool) -> tuple[Tensor, ...]:
        """The numbers that the others have sent, a tensor for each piece, `width` numbers for each of the piece's."""
        by_owner, by_holder = self._totals(width)
        sizes_sent, sizes_received = (by_owner, by_holder) if to_owners else (by_holder, by_owner)
        received = self._part.master.new_empty(sum(sizes_received))
        flat = torch.cat(sent) if sent else received.new_empty(0)
        dist.all_to_all_single(received, flat, sizes_received, sizes_sent)
        pieces = self._incoming() if to_owners else self._outgoing()
        return received.split([width * piece.size for _, piece in pieces])

    def _totals(self, width: int) -> tuple[list[int], list[int]]:
        """Numbers that go to each owner, and that come from each holder of slices."""
        by_owner, by_holder = ([0] * dist.get_world_size() for _ in range(2))
        for number, piece in self._part.mine.items():
            by_owner[self._owners[number]] += width * piece.size
        for process, pieces in enumerate(self._part.pieces):
            by_holder[process] = sum(width * piece.size for number, piece in pieces.items() if number in self.owned)
        return by_owner, by_holder
