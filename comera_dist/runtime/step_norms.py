"""Norms of the gradient, the weights and the update of every layer in one step, at every ZeRO stage.

Each process sums the squares of the pieces that its optimizer updates, and one all-reduce adds these sums, so no tensor
is gathered. Shapes: G layers.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from comera_dist.runtime.processes import Processes
from comera_dist.runtime.step import Norms
from comera_dist.runtime.zero_state import Part


class StepNorms:
    """Measures one step of `model`, whose optimizer updates `parts`. It only reads what the step computes.

    It is made before the update and keeps a copy of the weights that this process's optimizer updates. A layer is a
    module with parameters of its own, so the cores, gates and bias of a matrix count together.
    """

    def __init__(self, model: nn.Module, parts: list[Part], stage: int, processes: Processes):
        layers = {parameter: name.rpartition(".")[0] or name for name, parameter in model.named_parameters()}
        self._names = list(dict.fromkeys(layers.values()))
        self._number = {parameter: self._names.index(layer) for parameter, layer in layers.items()}
        self._stage, self._processes = stage, processes
        self._before = {part.master: part.master.detach().clone() for part in parts}
        self._part_of = {part.master: part for part in parts}
        self._gradient_G = self._zeros()

    def note(self, stepped: Iterable[Tensor]) -> None:
        """Takes the gradients of the tensors that the optimizer is about to step."""
        for master in stepped:
            if master.grad is not None:
                self._add(self._part_of[master], master.grad, self._gradient_G)

    def norms(self, clipping: float) -> Norms:
        """The norms after the update; gradients are multiplied by `clipping`, by which they were divided. Collective.

        `weight` is that of the updated weights, and `update_ratio` is `update` over `weight`, None for weights of zero.
        """
        weight_G, update_G = self._zeros(), self._zeros()
        for part in self._part_of.values():
            self._add(part, part.master.detach(), weight_G)
            self._add(part, self._before.pop(part.master).sub_(part.master.detach()), update_G)
        squares_3G = torch.stack((self._gradient_G, weight_G, update_G))
        if self._stage:  # at stage 0 every process updates all parameters
            squares_3G = self._processes.sum_tensor(squares_3G)
        gradient, weight, update = squares_3G.sqrt().tolist()
        ratios = [u / w if w else None for u, w in zip(update, weight, strict=True)]
        measured = {"gradient": [clipping * g for g in gradient], "weight": weight, "update": update}
        return {
            quantity: dict(zip(self._names, values, strict=True))
            for quantity, values in {**measured, "update_ratio": ratios}.items()
        }

    def _add(self, part: Part, held: Tensor, squares_G: Tensor) -> None:
        """Adds the squares of a tensor that is laid out as the part's master."""
        flat_L = held.flatten()
        for number, piece in part.mine.items():
            norm = torch.linalg.vector_norm(piece.of_master(flat_L), dtype=torch.float64)
            squares_G[self._number[part.members[number]]] += norm.square()

    def _zeros(self) -> Tensor:
        return torch.zeros(len(self._names), dtype=torch.float64, device=self._processes.device)
