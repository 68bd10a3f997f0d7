"""The rank gates of a model inside its engine: read, written and pressed as one flat vector at every ZeRO stage.

Shapes: G gates of all layers in the order of the model's modules.
"""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from comera_dist.formats.capabilities import Gated
from comera_dist.optim.gate_adamw import GateAdamW
from comera_dist.runtime.optimizer_state import OptimizerState
from comera_dist.runtime.zero_state import local_copy, whole_shape


class GateState:
    """All gates of an engine, of which this process has a copy, and masters and second moments of its own pieces.

    Without `optimizer`, if ranks do not adapt, gates can only be read and written.
    """

    def __init__(self, layers: Iterable[Gated], state: OptimizerState, optimizer: GateAdamW | None, stage: int):
        self._gates = [gate for layer in layers for gate in layer.gates]
        self._sizes = [whole_shape(gate).numel() for gate in self._gates]
        self._state, self._optimizer, self._stage = state, optimizer, stage

    def copy(self) -> Tensor:
        """This process's gates (G), float64 on the CPU. Collective at stage 3."""
        return _flat(map(local_copy, self._gates))

    def shares(self) -> tuple[Tensor, Tensor]:
        """This process's summands of gates and of second moments (G), to be summed over all; float64 on the CPU."""
        assert self._optimizer is not None, "only adapting ranks have second moments to share"
        return self._share(Tensor.detach), self._share(self._optimizer.second_moment)

    def _share(self, held_of: Callable[[Tensor], Tensor]) -> Tensor:
        shares = []
        for gate, size in zip(self._gates, self._sizes, strict=True):
            part, number = self._state.home[gate]
            held = held_of(part.master).view(-1)
            shares.append(held.new_zeros(size))
            if number in part.mine:
                piece = part.mine[number]
                piece.of_parameter(shares[-1]).copy_(piece.of_master(held))
        # At stage 0 every process holds all gates.
        return _flat(shares) if self._stage else _flat(shares) / dist.get_world_size()

    def write(self, gates_G: Tensor) -> None:
        """Sets parameters and masters on this process."""
        for gate, values in zip(self._gates, torch.split(gates_G, self._sizes), strict=True):
            self._state.set_weight(gate, values)

    def press(self, weights_G: Tensor) -> None:
        """Gives the optimizer this process's pieces of the weights that the pressure multiplies."""
        assert self._optimizer is not None, "only adapting ranks are pressed"
        weights: dict[Tensor, Tensor] = {}
        for gate, values in zip(self._gates, torch.split(weights_G, self._sizes), strict=True):
            part, number = self._state.home[gate]
            part.write(number, weights.setdefault(part.master, torch.zeros_like(part.master)), values)
        self._optimizer.gate_weights = weights


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    flat = [tensor.detach().flatten() for tensor in tensors]
    return torch.cat(flat).double().cpu() if flat else torch.zeros(0, dtype=torch.float64)
