"""Gives a running engine another gauge, or rebuilds it around a model of other ranks, while the run goes on."""

import gc
from collections.abc import Iterator
from itertools import groupby

import torch
from torch import Tensor, nn

from comera_dist.config import Config
from comera_dist.models.decoder import Decoder
from comera_dist.models.plan import Plan
from comera_dist.ranks.resize import Resize, Tensors
from comera_dist.runtime.engine import Engine
from comera_dist.runtime.processes import Processes

KINDS = ("weight", "exp_avg", "exp_avg_sq")


def rebalance(engine: Engine, resize: Resize) -> None:
    """Brings the layers that `resize` balances, and whose ranks it leaves, to their new gauge in place. Collective."""
    held = _Held(engine, resize, only=resize.balanced)
    engine.overwrite(held.states(engine.shapes, KINDS))


def rebuild(engine: Engine, config: Config, plan: Plan, resize: Resize) -> Engine:
    """Closes `engine` and returns one for the decoder of `plan`, with the resized weights and moments. Collective.

    The function that the model computes, the optimizer's step count and all that `resize` leaves alone stay as they
    were. Each process holds its share of the state meanwhile, 12 bytes a parameter over all of them.
    """
    processes, step = engine.processes, engine.optimizer_step
    held = _Held(engine, resize)
    engine.close()
    del engine
    gc.collect()
    model = Decoder(config.model, plan, generator=None)
    held.load_weights(model)
    new = Engine(model, config, processes)
    new.restore_moments(held.states(new.shapes, KINDS[1:]), step)
    return new


class _Held:
    """The state of all layers, or of those called in `only`, after the resize: each is kept by one process."""

    def __init__(self, engine: Engine, resize: Resize, only: tuple[str, ...] | None = None):
        self._processes: Processes = engine.processes
        self._owner: dict[str, int] = {}
        self._tensors: dict[str, Tensors] = {}
        filled = [0] * self._processes.count
        for layer, parameters in groupby(engine.state(), key=lambda item: item[0].rpartition(".")[0]):
            if only is not None and layer not in only:
                continue
            # Every process walks the same list and gives each layer to the one that holds least so far.
            owner, state = filled.index(min(filled)), {}
            for name, tensors in parameters:
                filled[owner] += tensors["weight"].numel()
                self._owner[name] = owner
                if owner == self._processes.index:
                    state[name] = {kind: t.clone() for kind, t in tensors.items()}
            self._tensors |= resize.apply_layer(layer, state) if state else {}

    @torch.no_grad()
    def load_weights(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            parameter.copy_(self._share(name, "weight", parameter.shape))

    def states(self, shapes: dict[str, torch.Size], kinds: tuple[str, ...]) -> Iterator[tuple[str, Tensors]]:
        """The tensors of every held parameter in turn, on all processes. `shapes` are those after the resize."""
        for name in shapes:
            if name in self._owner:
                yield name, {kind: self._share(name, kind, shapes[name]) for kind in kinds}

    def _share(self, name: str, kind: str, shape: torch.Size) -> Tensor:
        mine = self._tensors[name][kind] if name in self._tensors else torch.empty(shape)
        return self._processes.broadcast(mine, self._owner[name])
