"""The base of optimizers that step each dense matrix alone, from its gradient and its own state.

Shapes: a matrix (M, N).
"""

from collections.abc import Mapping
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar

from comera_dist.config.fields import Section
from comera_dist.config.optim_section import Optim
from comera_dist.optim.base import Group, State, WholeMatrices

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


class EachMatrix(WholeMatrices):
    """A subclass has a `section` of settings, declares `shapes` and computes `update`.

    Its state is the tensors of these shapes and a step count.
    """

    section: ClassVar[type[Section]]
    _settings: Any  # of the class `section`
    roles: ClassVar[Mapping[str, str]] = {}  # a dense matrix has no gauge and no ranks, so nothing is transformed

    def __init__(self, config: Optim):
        super().__init__(config)
        self._settings = config.own(self.name, self.section)
        self._layers: dict[Tensor, str] = {}

    def update(self, matrix: "nn.Parameter", state: State, gradient_MN: "Tensor") -> "Tensor":
        """What a step subtracts from the matrix at a learning rate of 1, without weight decay: (M, N).

        Changes the tensors of `state` in place. `state["step"]` counts this step already; at the first step all tensors
        are zeros.
        """
        raise NotImplementedError

    def prepare(self, model: "nn.Module") -> None:
        self._layers |= {parameter: name.removesuffix(".weight") for name, parameter in model.named_parameters()}

    def stand_in(self, whole: "nn.Parameter", parameter: "nn.Parameter") -> None:
        self._layers[whole] = self._layers[parameter]

    def layer_of(self, matrix: "Tensor") -> str:
        """The name of the layer whose weight the matrix is; random numbers follow from it, as from the step."""
        return self._layers[matrix]

    def build(self, groups: list[Group]) -> "Optimizer":
        from comera_dist.optim.matrix_steps import MatrixSteps

        return MatrixSteps(groups, self.config.lr)

    def blank(self, parameter: "Tensor", step: int = 0) -> State:
        return {"step": step, **super().blank(parameter, step)}

    def tensors(self, state: State) -> dict[str, "Tensor"]:
        return {kind: tensor for kind, tensor in state.items() if kind != "step"}


def householder_flops(rows: int, columns: int) -> int:
    """FLOPs of a QR decomposition with its basis, of a matrix with fewer columns K than rows (Golub and Van Loan 2013).

    Both parts take 2·M·K² − 2·K³/3. The part in K³ is left out, so a square matrix counts for half as much again.
    """
    return 4 * rows * columns**2


def adam_direction(
    mean_MN: "Tensor", square_MN: "Tensor", betas: tuple[float, float], eps: float, steps: int
) -> "Tensor":
    """Adam's step (Kingma and Ba 2015), from the first and second moments of `steps` gradients."""
    correction1, correction2 = (1 - beta**steps for beta in betas)
    return mean_MN / correction1 / ((square_MN / correction2).sqrt() + eps)


def next_adam_direction(mean: "Tensor", square: "Tensor", gradient: "Tensor", config: Optim, steps: int) -> "Tensor":
    """Adam's step after both moments took in the gradient, the one of number `steps`."""
    beta1, beta2 = config.betas
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    return adam_direction(mean, square, (beta1, beta2), config.eps, steps)


def muon_scale(rows: int, columns: int) -> float:
    """Factor that gives U Vᵀ of full rank the root mean square 0.2 of AdamW's updates.

    It is Muon's (Liu et al. 2025, arXiv 2502.16982), so one `optim.lr` suits all methods that use it. An update of
    lower rank has the same singular values and a smaller root mean square.
    """
    return 0.2 * sqrt(max(rows, columns))
