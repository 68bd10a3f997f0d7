"""Whole parameters at ZeRO stages above 0, for optimizers that cannot step slices.

Each process owns some parameters of a part. At a step every process sends its pieces of weights and gradients to the
owners, which step whole parameters and send back the new weights: two all-to-alls, which together move three numbers
for each number of a slice. The optimizer's state stays with the owner. Shapes: L numbers of a process's master.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor, nn

from comera_dist.runtime.zero_state import Part, Piece, whole_shape

Pieces = list[list[tuple[int, Piece]]]  # for each other process: the pieces to exchange, with the member's number


class DealtParameters:
    """This process's whole parameters of a part (see `optim.combined.WholeParameters`).

    `owners` has the owning process of each member. `owned` are the parameters that the optimizer steps, and the keys of
    its state, by the member's number; between steps they have a shape but take no memory.
    """

    def __init__(self, part: Part, owners: list[int]):
        self._part, self._owners = part, owners
        self.owned = {number: nn.Parameter(self._empty(number)) for number in self.owned_by(dist.get_rank())}
        self._outgoing: Pieces = [
            [(number, piece) for number, piece in part.mine.items() if owners[number] == owner]
            for owner in range(dist.get_world_size())
        ]
        self._incoming: Pieces = [
            [(number, piece) for number, piece in pieces.items() if number in self.owned] for pieces in part.pieces
        ]

    def owned_by(self, process: int) -> list[int]:
        """Numbers of the members that a process owns."""
        return [number for number, owner in enumerate(self._owners) if owner == process]

    def collect(self) -> list[nn.Parameter]:
        """The owned parameters, with weights and gradients of this step. Collective."""
        assert self._part.master.grad is not None
        both = self._part.master.detach(), self._part.master.grad
        sent = (tuple(map(piece.of_master, both)) for _, piece in chain(*self._outgoing))
        received = self._exchange(sent, self._outgoing, self._incoming, width=2)
        wholes = {number: both[0].new_empty(2, parameter.numel()) for number, parameter in self.owned.items()}
        for (number, piece), values in zip(chain(*self._incoming), received, strict=True):
            piece.of_parameter(wholes[number]).copy_(values)
        for number, parameter in self.owned.items():
            parameter.data, parameter.grad = wholes[number].view(2, *parameter.shape)
        return list(self.owned.values())

    def distribute(self) -> None:
        """Writes the new weights to the slices on all processes and frees the whole ones. Collective."""
        flat = {number: parameter.detach().view(-1) for number, parameter in self.owned.items()}
        sent = ((piece.of_parameter(flat[number]),) for number, piece in chain(*self._incoming))
        received = self._exchange(sent, self._incoming, self._outgoing, width=1)
        for (_, piece), values in zip(chain(*self._outgoing), received, strict=True):
            piece.of_master(self._part.master.detach()).copy_(values[0])
        for number, parameter in self.owned.items():
            parameter.grad, parameter.data = None, self._empty(number)

    def _empty(self, number: int) -> Tensor:
        return self._part.master.new_zeros(()).expand(whole_shape(self._part.members[number]))

    def _exchange(
        self, sent: Iterable[tuple[Tensor, ...]], outgoing: Pieces, incoming: Pieces, width: int
    ) -> Iterator[Tensor]:
        """An all-to-all of `width` flat tensors for each piece; returns a tensor (width, size) for each incoming one.

        What is sent is copied straight into one buffer, which is freed before anything is done with what is received.
        """
        sizes_out, sizes_in = (
            [width * sum(piece.size for _, piece in pieces) for pieces in side] for side in (outgoing, incoming)
        )
        out, received = (self._part.master.new_empty(sum(sizes)) for sizes in (sizes_out, sizes_in))
        for target, values in zip(_divided(out, outgoing, width), sent, strict=True):
            for row, one in zip(target, values, strict=True):
                row.copy_(one)
        dist.all_to_all_single(received, out, sizes_in, sizes_out)
        return _divided(received, incoming, width)


def _divided(flat: Tensor, pieces: Pieces, width: int) -> Iterator[Tensor]:
    """Views (width, size) of a buffer, one for each piece."""
    sizes = [piece.size for _, piece in chain(*pieces)]
    parts = torch.split(flat, [width * size for size in sizes])
    return (part.view(width, size) for part, size in zip(parts, sizes, strict=True))
