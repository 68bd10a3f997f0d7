"""ReLoRA (Lialin et al., ICLR 2024, arXiv 2307.05695): a matrix trains through low-rank adapters that begin anew.

Shapes: a matrix (M, N) has the adapters A (R, N) and B (M, R), R at most M and N.
"""

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from comera_dist.config.fields import NonNegative, Number, Positive, PositiveFloat, Section
from comera_dist.config.tree import Config
from comera_dist.optim.base import Group, Shape, State
from comera_dist.optim.draws import uniforms
from comera_dist.optim.each_matrix import EachMatrix, next_adam_direction

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

ADAPTERS = ("A", "B")
MOMENTS = ("exp_avg", "exp_avg_sq")


class Settings(Section):
    """Keys of optim.kind = relora. The defaults are those of the paper or of its authors' runs with 130M parameters."""

    rank: Positive = 128
    """Rank of the adapters."""
    alpha: PositiveFloat = 32.0
    """The adapters' product is multiplied by alpha / rank."""
    full_rank_steps: NonNegative = 5000
    """Steps of AdamW at full rank before the first adapters."""
    restart_every: Positive = 2000
    """Steps of one pair of adapters."""
    warmup_steps: NonNegative = 100
    """Steps in which the learning rate of new adapters rises from zero."""
    pruned: Annotated[float, Number, Field(ge=0.0, lt=1.0)] = 0.9
    """Share of the entries of Adam's moments that become 0 when adapters begin anew, those of the smallest mean."""


class ReLora(EachMatrix):
    """After `full_rank_steps` steps of AdamW, W = W₀ + s·B·A, in which Adam steps A and B, and s = alpha / rank.

    Every `restart_every` steps their product stays in W₀, A is drawn anew, B becomes 0, and Adam's moments are pruned.
    Their learning rate then rises from 0 again. The gradients of A and B follow from that of W, as s·Bᵀ·G and s·G·Aᵀ,
    so the matrix is stepped as if adapters stood in the model. Different here: W has a gradient, which an adapter in
    the model would not need; the gradient is clipped as a whole; only the learning rate of the matrices rises again;
    weight decay shrinks W; both moments of an entry stay or go. (The authors prune each alone. An entry that lost the
    second one would move by its first one over `optim.eps`, because A has no gradient while B is 0.) Left out: dropout
    of the adapters' inputs.
    """

    name = "relora"
    section = Settings
    _settings: Settings

    def problems(self, config: Config) -> list[str]:
        problems, steps = super().problems(config), config.total_steps
        if steps and self.is_full_rank(steps):
            problems.append(
                f"optim.relora.full_rank_steps = {self._settings.full_rank_steps} leaves no step with adapters within "
                f"{steps} steps; lower it"
            )
        return problems

    def build(self, groups: list[Group]) -> "Optimizer":
        from comera_dist.optim.adapter_steps import AdapterSteps

        return AdapterSteps(groups, self.config.lr)

    def shapes(self, shape: Shape) -> dict[str, Shape]:
        """Those of a matrix with adapters."""
        (M, N), R = shape, min(self._settings.rank, *shape)
        adapters: dict[str, Shape] = {"A": (R, N), "B": (M, R)}
        return adapters | {f"{adapter}_{moment}": adapters[adapter] for adapter in ADAPTERS for moment in MOMENTS}

    def shapes_after(self, step: int, parameter: "Tensor", shape: Shape) -> dict[str, Shape]:
        return dict.fromkeys(MOMENTS, shape) if self.is_full_rank(step) else self.shapes(shape)

    def numbers_in(self, steps: int, shapes: Mapping[str, Shape]) -> Iterator[dict[str, int]]:
        if self._settings.full_rank_steps:
            yield {name: 2 * rows * columns for name, (rows, columns) in shapes.items()}
        if not self.is_full_rank(steps):
            yield {name: self.numbers(shape) for name, shape in shapes.items()}

    def product_flops(self, matrices: int, rows: int, columns: int) -> int:
        """Two products for the adapters' gradients and two for the change of the matrix."""
        return 8 * matrices * rows * columns * min(self._settings.rank, rows, columns)

    def is_full_rank(self, step: int) -> bool:
        """Whether the run's step number `step`, from 1, is one of AdamW; 0, before the first step, counts as 1."""
        return max(1, step) <= self._settings.full_rank_steps

    def change(self, matrix: "nn.Parameter", state: State, gradient_MN: "Tensor", lr: float) -> "Tensor":
        """What a step adds to the matrix, without weight decay: (M, N). Changes `state` as `update` does."""
        if self.is_full_rank(state["step"]):
            return -lr * self._adam(state, "", gradient_MN, state["step"])
        steps = state["step"] - self._settings.full_rank_steps  # with adapters, this one included
        restarts, made = divmod(steps - 1, self._settings.restart_every)
        if made == 0:
            self._restart(matrix, state, restarts)
        A_RN, B_MR = state["A"], state["B"]
        scale = self._settings.alpha / self._settings.rank
        gradients = {"A": scale * B_MR.mT @ gradient_MN, "B": scale * gradient_MN @ A_RN.mT}
        rate = lr * min(1.0, (made + 1) / (self._settings.warmup_steps + 1))
        changes = {name: -rate * self._adam(state, f"{name}_", gradients[name], steps) for name in ADAPTERS}
        before_MR = B_MR.clone()
        for name in ADAPTERS:
            state[name] += changes[name]
        # s·(B·A after the step − B·A before it), without the difference of two nearly equal products.
        change_MN: Tensor = scale * (changes["B"] @ A_RN + before_MR @ changes["A"])
        return change_MN

    def _restart(self, matrix: "nn.Parameter", state: State, restarts: int) -> None:
        if restarts == 0:  # the moments of AdamW end here
            step = state["step"]
            state.clear()
            state |= self.blank(matrix, step)
        else:
            for name in ADAPTERS:
                prune(state[f"{name}_exp_avg"], state[f"{name}_exp_avg_sq"], self._settings.pruned)
        R, N = state["A"].shape
        # The initialisation of a linear layer in torch, as the authors have it.
        drawn_RN = uniforms(f"relora/{self.layer_of(matrix)}/{restarts}", (R, N), matrix.device)
        state["A"].copy_((2 * drawn_RN - 1) / sqrt(N))
        state["B"].zero_()

    def _adam(self, state: State, prefix: str, gradient: "Tensor", steps: int) -> "Tensor":
        mean, square = (state[f"{prefix}{moment}"] for moment in MOMENTS)
        return next_adam_direction(mean, square, gradient, self.config, steps)


def prune(mean: "Tensor", square: "Tensor", share: float) -> None:
    """Sets this share of the entries of both moments to 0, those of the smallest mean; equal ones with them."""
    count = int(share * mean.numel())
    if count:
        magnitudes = mean.abs()
        kept = magnitudes > magnitudes.flatten().kthvalue(count).values
        mean.mul_(kept)
        square.mul_(kept)
