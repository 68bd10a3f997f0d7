"""Rebuilds the engine around a model of other ranks while the run goes on."""

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


def rebuild(engine: Engine, config: Config, plan: Plan, resize: Resize) -> Engine:
    """Closes `engine` and returns one for the decoder of `plan`, with the resized weights and moments. Collective.

    The function that the model computes, the optimizer's step count and all that `resize` leaves alone stay as they
    were, bit for bit. Each process holds its share of the state meanwhile, 12 bytes a parameter over all of them.
    """
    processes, step = engine.processes, engine.optimizer_step
    held = _Held(engine, resize)
    engine.close()
    del engine
    gc.collect()
    model = Decoder(config.model, plan, torch.Generator().manual_seed(config.run.seed))
    held.load_weights(model)
    moments = held.moments(model)
    new = Engine(model, config, processes)
    new.restore_moments(moments, step)
    return new


class _Held:
    """The resized state between two engines: each layer is kept by one process, bytes spread evenly."""

    def __init__(self, engine: Engine, resize: Resize):
        self._processes: Processes = engine.processes
        self._owner: dict[str, int] = {}
        self._tensors: dict[str, Tensors] = {}
        filled = [0] * self._processes.count
        for layer, parameters in groupby(engine.state(), key=lambda item: item[0].rpartition(".")[0]):
            owner = filled.index(min(filled))
            state = {}
            for name, tensors in parameters:
                filled[owner] += tensors["weight"].numel()
                self._owner[name] = owner
                if owner == self._processes.index:
                    state[name] = {kind: t.clone() for kind, t in tensors.items()}
            self._tensors |= resize.apply_layer(layer, state) if state else {}

    def _share(self, name: str, kind: str, like: Tensor) -> Tensor:
        mine = self._tensors[name][kind] if name in self._tensors else torch.empty_like(like)
        return self._processes.broadcast(mine, self._owner[name])

    @torch.no_grad()
    def load_weights(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            parameter.copy_(self._share(name, "weight", parameter))

    def moments(self, model: nn.Module) -> Iterator[tuple[str, Tensors]]:
        """Moments of the parameters, whose shapes are read before the engine partitions them."""
        shapes = {name: parameter.detach().to("meta") for name, parameter in model.named_parameters()}
        return self._moments(shapes)

    def _moments(self, shapes: dict[str, Tensor]) -> Iterator[tuple[str, Tensors]]:
        for name, like in shapes.items():
            empty = torch.empty(like.shape)
            yield name, {kind: self._share(name, kind, empty) for kind in ("exp_avg", "exp_avg_sq")}
