"""Carries a resize out in a running engine: balances layers in place, or rebuilds it around a model of other ranks."""

import gc
from collections.abc import Callable, Iterator
from math import prod

import torch
from torch import nn

from comera_dist.optim.at_once import in_batches
from comera_dist.optim.base import Shape
from comera_dist.ranks.resize import Resize, Tensors
from comera_dist.runtime.engine import Engine
from comera_dist.runtime.memory import return_freed_memory
from comera_dist.runtime.sharing import share_out

CPU = torch.device("cpu")
# Numbers that processes exchange at a time, 256 MiB. Chosen: little beside the state of a model that fills a GPU.
AT_ONCE = 1 << 26


def rebalance(engine: Engine, resize: Resize) -> None:
    """Brings the layers that `resize` balances, none of which it cuts, to balanced form in place. Collective."""
    held = HeldState(engine, resize, only=resize.balanced)
    shapes, kept = engine.shapes, engine.kept_shapes(engine.optimizer_step)
    engine.overwrite(held.states({name: {"weight": shapes[name]} | kept[name] for name in shapes}))
    engine.restart_gates()


def rebuild(
    engine: Engine, resize: Resize, build_model: Callable[[], nn.Module], start: Callable[[nn.Module], Engine]
) -> Engine:
    """Closes `engine` and starts one for the resized model, with the resized weights and moments. Collective.

    `build_model` makes the model with weights of any content, `start` an engine around it. The optimizer's step count
    stays; where layers are balanced, the gates of adapted layers count their steps from 0. In between each process
    holds its share of the state in the memory of its CPU, 12 bytes a parameter over all processes.
    """
    step = engine.optimizer_step
    gate_step = 0 if resize.balanced else engine.gate_step
    held = HeldState(engine, resize)
    engine.close()
    del engine
    gc.collect()
    model = build_model()
    held.load_weights(model)
    new = start(model)
    new.restore_moments(held.states(new.kept_shapes(step)), step, gate_step)
    del held
    return_freed_memory()
    return new


class HeldState:
    """The resized weights and moments of all layers, or of those in `only`; each layer is held by one process.

    They are on the CPU, because a GPU has the state of the old engine, and then of the new one. Layers are resized on
    the device of the run, one at a time.
    """

    def __init__(self, engine: Engine, resize: Resize, only: tuple[str, ...] | None = None):
        self._processes, shapes = engine.processes, engine.shapes
        layers: dict[str, list[str]] = {}
        for name in shapes:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
        layers = {layer: names for layer, names in layers.items() if only is None or layer in only}
        sizes = {layer: sum(shapes[name].numel() for name in names) for layer, names in layers.items()}
        owners = share_out(sizes, self._processes.count)
        self._owner = {name: owners[layer] for layer, names in layers.items() for name in names}
        state, device = engine.state(self._owner, CPU), self._processes.device
        self._tensors: dict[str, Tensors] = {}
        for layer, names in layers.items():
            if owners[layer] == self._processes.index:
                whole = {name: _on(device, state.pop(name)) for name in names}
                self._tensors |= {name: _on(CPU, new) for name, new in resize.apply_layer(layer, whole).items()}

    @torch.no_grad()
    def load_weights(self, model: nn.Module) -> None:
        """Sets the weights of `model`. Collective."""
        parameters = dict(model.named_parameters())
        for name, tensors in self.states({name: {"weight": p.shape} for name, p in parameters.items()}):
            parameters[name].copy_(tensors["weight"])

    def states(self, wanted: dict[str, dict[str, Shape]]) -> Iterator[tuple[str, Tensors]]:
        """Name and `wanted` tensors of every held parameter, on all processes. Collective.

        `wanted` has their shapes after the resize, by parameter name and kind. A broadcast has at most AT_ONCE numbers,
        or one larger parameter.
        """
        for source in range(self._processes.count):
            own = {name: shapes for name, shapes in wanted.items() if self._owner.get(name) == source}
            for names in in_batches({name: sum(map(prod, shapes.values())) for name, shapes in own.items()}, AT_ONCE):
                yield from self._broadcast({name: own[name] for name in names}, source)

    def _broadcast(self, wanted: dict[str, dict[str, Shape]], source: int) -> Iterator[tuple[str, Tensors]]:
        """`wanted` tensors of one process's parameters. Collective."""
        sizes = [prod(shape) for shapes in wanted.values() for shape in shapes.values()]
        flat = torch.empty(sum(sizes))
        if source == self._processes.index:
            parts = [self._tensors[name][kind].flatten() for name, shapes in wanted.items() for kind in shapes]
            flat = torch.cat([flat[:0], *parts])  # an optimizer may keep nothing
        received = iter(torch.split(self._processes.broadcast(flat, source), sizes))
        for name, shapes in wanted.items():
            yield name, {kind: next(received).view(shape) for kind, shape in shapes.items()}


def _on(device: torch.device, tensors: Tensors) -> Tensors:
    return {kind: tensor.to(device) for kind, tensor in tensors.items()}
