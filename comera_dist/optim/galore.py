"""GaLore (Zhao et al., ICML 2024): AdamW whose moments live in a low-rank projection of the gradients.

Shapes: a matrix (M, N), R the rank that GaLore projects its gradient to.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from comera_dist.config.fields import Positive, PositiveFloat, Section
from comera_dist.config.tree import Optim
from comera_dist.errors import ConfigError
from comera_dist.optim.base import Shape, State, WholeMatrices

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
        self._settings = config.own("galore", Settings)

    def build(self, groups: list[dict]) -> "Optimizer":
        try:
            from galore_torch import GaLoreAdamW
        except ImportError as error:
            raise ConfigError(
                f"galore-torch was not found ({error}) and optim.kind = galore is its optimizer; run "
                f"pip install -c constraints.txt -e '.[bench]', or set optim.kind=adamw"
            ) from error
        config, projector = self.config, self._projector()
        return GaLoreAdamW(
            [group | projector for group in groups],
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            no_deprecation_warning=True,
        )

    def shapes(self, shape: Shape) -> dict[str, Shape]:
        M, N = shape
        R = min(self._settings.rank, M, N)
        moments, basis = ((M, R), (R, N)) if M >= N else ((R, N), (M, R))
        return {"exp_avg": moments, "exp_avg_sq": moments, "projection": basis}

    def blank(self, parameter: "Tensor", step: int = 0) -> State:
        """Laid out as GaLoreAdamW makes it: counts of steps are integers, the basis lies in an object."""
        from galore_torch.galore_projector import GaLoreProjector

        projector, kept, (M, N) = GaLoreProjector(**self._projector()), super().blank(parameter), parameter.shape
        # In memory the basis lies as in the decomposition that it is a part of, column by column: a product with
        # another layout rounds otherwise, and a resumed run would not be the uninterrupted one.
        R = min(self._settings.rank, M, N)
        basis = parameter.new_zeros(N, N).T[:R] if M >= N else parameter.new_zeros(R, M).T
        projector.ortho_matrix = basis
        return {"step": step, "projector": projector, "exp_avg": kept["exp_avg"], "exp_avg_sq": kept["exp_avg_sq"]}

    def tensors(self, state: State) -> dict[str, "Tensor"]:
        moments = {kind: state[kind] for kind in ("exp_avg", "exp_avg_sq")}
        return moments | {"projection": state["projector"].ortho_matrix}

    def _projector(self) -> dict[str, int | float | str]:
        galore = self._settings
        return {
            "rank": galore.rank,
            "update_proj_gap": galore.update_every,
            "scale": galore.scale,
            "proj_type": "std",
        }
