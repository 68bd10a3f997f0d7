"""GaLore (Zhao et al., ICML 2024): AdamW whose moments live in a low-rank projection of the gradients.

Shapes: a matrix (M, N), R the rank that its gradient is projected to.
"""

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from comera_dist.config.fields import Positive, PositiveFloat, Section
from comera_dist.config.optim_section import Optim
from comera_dist.errors import ConfigError
from comera_dist.optim.base import Group, Shape, State, WholeMatrices
from comera_dist.optim.projected import projected_shapes, projection_flops

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


class Settings(Section):
    """Keys of optim.kind = galore. The defaults are those of the authors' README."""

    rank: Positive = 128
    """Rank that gradients are projected to."""
    update_every: Positive = 200
    """Steps between two computations of the projection."""
    scale: PositiveFloat = 0.25
    """Factor of the projected update."""


class GaLore(WholeMatrices):
    """Projects the shorter side of the gradient. It keeps both moments of the projected gradient, and the basis."""

    name = "galore"
    roles: ClassVar[Mapping[str, str]] = {}  # none of the three is shaped like the matrix
    section = Settings

    def __init__(self, config: Optim):
        super().__init__(config)
        settings = config.own("galore", Settings)
        self._rank = settings.rank
        self._projector: dict[str, Any] = {
            "rank": settings.rank,
            "update_proj_gap": settings.update_every,
            "scale": settings.scale,
            "proj_type": "std",
        }

    def build(self, groups: list[Group]) -> "Optimizer":
        try:
            from galore_torch import GaLoreAdamW
        except ImportError as error:
            raise ConfigError(
                f"galore-torch was not found ({error}) and optim.kind = galore is its optimizer; run "
                f"pip install -c constraints.txt -e '.[bench]', or set optim.kind=adamw"
            ) from error
        config, groups = self.config, [group | self._projector for group in groups]
        optimizer: Optimizer = GaLoreAdamW(
            groups, lr=config.lr, betas=config.betas, eps=config.eps, no_deprecation_warning=True
        )
        return optimizer

    def product_flops(self, matrices: int, rows: int, columns: int) -> int:
        return projection_flops(2, matrices, rows, columns, self._rank)

    def shapes(self, shape: Shape) -> dict[str, Shape]:
        moments, basis = projected_shapes(shape, self._rank)
        if shape[0] >= shape[1]:  # the library keeps both as the matrix lies
            moments, basis = moments[::-1], basis[::-1]
        return {"exp_avg": moments, "exp_avg_sq": moments, "projection": basis}

    def numbers(self, shape: Shape) -> int:
        """With all singular vectors of the shorter side: the library's basis is a view, which keeps them alive."""
        moments, _ = projected_shapes(shape, self._rank)
        return 2 * prod(moments) + min(shape) ** 2

    def blank(self, parameter: "Tensor", step: int = 0) -> State:
        """Laid out like GaLoreAdamW's state: the step count is an integer, and an object holds the basis."""
        from galore_torch.galore_projector import GaLoreProjector

        kept, projector = super().blank(parameter), GaLoreProjector(**self._projector)
        # The basis keeps the column-major layout of the decomposition that it comes from: a product with another layout
        # rounds differently, and a resumed run would differ from the uninterrupted one.
        (M, N), basis = parameter.shape, kept.pop("projection")
        projector.ortho_matrix = basis.new_zeros(N, N).T[: len(basis)] if M >= N else basis.T.contiguous().T
        return {"step": step, "projector": projector, **kept}

    def tensors(self, state: State) -> dict[str, "Tensor"]:
        moments = {kind: state[kind] for kind in ("exp_avg", "exp_avg_sq")}
        return moments | {"projection": state["projector"].ortho_matrix}
