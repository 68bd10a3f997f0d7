"""Spectral descent: factors of weights take steps whose singular values are alike, scaled by the other factors.

Muon (Jordan et al. 2024) replaces a momentum U S Vᵀ by U Vᵀ. Here all factors that a format names
(`formats.base.Unfoldings`) take such steps, matrix by matrix. A dense weight is its own only factor, for which this is
Muon with steps in proportion to √(outputs / inputs).
"""

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from comera_dist.config.fields import NonNegative, Number, Section
from comera_dist.config.optim_section import Optim
from comera_dist.formats.base import BF16
from comera_dist.optim.base import MEAN, Group, Method, State, newton_schulz_flops

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from comera_dist.optim.factors import Factor


class Settings(Section):
    """Keys of optim.kind = spectral."""

    momentum: Annotated[float, Number, Field(ge=0.0, lt=1.0)] = 0.95
    """Decay rate of the mean of gradients; the default is Muon's (Jordan, 2024)."""
    momentum_warmup_steps: NonNegative = 300
    """Steps over which the decay rate rises linearly from 0.85; docs/recipe.md has the gain."""


class Spectral(Method):
    """Updates the factors of all linear layers in blocks, dense weights included; keeps first moments alone."""

    name = "spectral"
    takes = ("matrices", "factors")
    needs_whole = True
    can_be_captured = True
    can_round = True
    roles: ClassVar[Mapping[str, str]] = {"momentum_buffer": MEAN}
    product_bytes = BF16
    section = Settings

    def __init__(self, config: Optim):
        super().__init__(config)
        self._settings: Settings = config.own("spectral", Settings)
        self._factors: dict[nn.Parameter, Factor] = {}

    def product_flops(self, matrices: int, rows: int, columns: int) -> int:
        return newton_schulz_flops(matrices, rows, columns)

    def prepare(self, model: "nn.Module") -> None:
        from comera_dist.optim.factors import factors_of

        self._factors |= factors_of(model)

    def build(self, groups: list[Group]) -> "Optimizer":
        from comera_dist.optim.spectral_descent import SpectralDescent

        own = self._settings
        return SpectralDescent(groups, self._factors, self.config.lr, own.momentum, own.momentum_warmup_steps)

    def blank(self, parameter: "Tensor", step: int = 0) -> State:
        # Each parameter has a step count of its own, on its device, where a CUDA graph can advance it.
        return {"step": parameter.new_tensor(float(step)), **super().blank(parameter)}

    def unit_of(self, parameter: "nn.Parameter") -> Hashable:
        """All factors of a layer: a step of one depends on the others."""
        return self._factors[parameter].layer

    def stand_in(self, whole: "nn.Parameter", parameter: "nn.Parameter") -> None:
        self._factors[whole] = self._factors[parameter]
