"""The rank gates of a model inside its engine: read, written and pressed as one flat vector at every ZeRO stage.

Shapes: G gates of all tensor trains in the order of the model's modules; L numbers of this process's part of them.
"""

import torch
from torch import Tensor, nn

from comera_dist.formats.capabilities import Gated
from comera_dist.optim.gate_adamw import GateAdamW
from comera_dist.runtime import zero_state
from comera_dist.runtime.optimizer_state import OptimizerState


class GateState:
    """What this process holds of the gates: a copy of all of them, and the masters and second moments of a part.

    Without `optimizer`, where ranks do not adapt, they can only be read and written.
    """

    def __init__(self, model: nn.Module, state: OptimizerState, optimizer: GateAdamW | None, stage: int):
        self._gates = [gate for module in model.modules() if isinstance(module, Gated) for gate in module.gates]
        self._optimizer, self._stage = optimizer, stage
        self._masters, index_L = state.held(self._gates)
        self._count = sum(map(zero_state.whole_size, self._gates))
        self._index_L = index_L.clamp_max(self._count)  # number G takes what only pads a part

    def copy(self) -> Tensor:
        """This process's gates (G), float64 on the CPU."""
        return _flat(zero_state.local_copy(gate) for gate in self._gates).double().cpu()

    def shares(self) -> tuple[Tensor, Tensor]:
        """Gates and second moments (G): what remains is to sum them over all processes. float64 on the CPU."""
        return self._share(self._masters), self._share(map(self._optimizer.second_moment, self._masters))

    def _share(self, parts: list[Tensor]) -> Tensor:
        share = torch.zeros(self._count + 1, dtype=torch.float64)
        share[self._index_L] = _flat(parts).double().cpu()
        if self._stage == 0:
            share /= torch.distributed.get_world_size()
        return share[:-1]

    def write(self, gates_G: Tensor) -> None:
        """Sets parameters and masters on this process."""
        for master, part in zip(self._masters, self._parts(gates_G), strict=True):
            master.data.copy_(part.view_as(master))
        if self._stage:
            sizes = [zero_state.whole_size(gate) for gate in self._gates]
            for gate, values in zip(self._gates, gates_G.split(sizes), strict=True):
                zero_state.set_copy(gate, values)

    def press(self, weights_G: Tensor) -> None:
        """Gives the optimizer this process's part of the weights that the pressure multiplies."""
        parts = zip(self._masters, self._parts(weights_G), strict=True)
        self._optimizer.gate_weights = {master: part.to(master).view_as(master) for master, part in parts}

    def _parts(self, values_G: Tensor) -> list[Tensor]:
        padded = torch.cat((values_G, values_G.new_zeros(1)))
        return list(padded[self._index_L].split([master.numel() for master in self._masters]))


def _flat(parts) -> Tensor:
    tensors = [part.detach().flatten() for part in parts]
    return torch.cat(tensors) if tensors else torch.zeros(0)
