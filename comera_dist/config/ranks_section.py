"""The keys of `ranks`: which ranks adapt, the pressure on their gates, and the size that is the target."""

from typing import Annotated

from pydantic import BeforeValidator, Field, SerializeAsAny

from comera_dist.config.by_kind import POLICY
from comera_dist.config.fields import (
    Fraction,
    NonNegative,
    NonNegativeFloat,
    Number,
    Patterns,
    Positive,
    PositiveFloat,
    Section,
    Total,
)
from comera_dist.config.policy_section import PolicySection

TARGETS = ("target_compression", "target_fraction", "target_params")  # keys of `ranks`, of which one may be set
OF_LATE_STAGE = ("late_start", "late_end", "rho", "loss_bound")  # keys of `ranks` that only the late stage reads


class Ranks(Section):
    """Rank adaptation: an early stage penalizes rank gates slightly, a late stage reaches the target size.

    The late stage needs one of the three targets. Without a target there is only the early stage. Constants without a
    source are chosen; docs/design.md has measurements.
    """

    adapt: bool = False
    """Whether ranks adapt during training."""
    layers: Patterns = ("*",)
    """Shell-style patterns of the layers whose ranks may change, out of the layers with rank gates."""
    removable: Patterns = ()
    """Shell-style patterns of the block layers that may lose all ranks; the output of such a layer is then zero."""
    min_rank: Positive = 1
    """Smallest rank to which a bond may be cut, except in removable layers."""
    policy: Annotated[SerializeAsAny[PolicySection], BeforeValidator(POLICY.read)] = Field(
        default_factory=lambda: POLICY.read({})
    )
    """Policy that decides which indices are cut and added: its name, or its keys with its name as `kind`."""
    sync_every: Positive = 100
    """Steps between two decisions, at which all processes also check that they agree."""
    drift_tolerance: NonNegativeFloat = 1e-3
    """Largest difference of a gate between processes; the run stops if it is exceeded."""
    pressure: NonNegativeFloat = 0.01
    """Weight γ of the relative size in the objective, in nats; docs/design.md says why the default is small."""
    warmup_steps: NonNegative = 0
    """Steps over which γ rises linearly from 0."""
    late_start: Fraction = 0.3
    """Share of the run's steps after which the late stage begins; docs/design.md compares the default with 0.15."""
    late_end: Fraction = 0.7
    """Share of the run's steps after which the target is reached; docs/design.md compares the default with 0.5."""
    rho: PositiveFloat = 0.1
    """Weight ρ of the augmentation in the late stage's objective; smaller values press harder."""
    loss_bound: PositiveFloat | None = None
    """Loss in nats per token above which the late stage stops reducing the size; null sets no bound."""
    target_compression: PositiveFloat | None = None
    """Target: dense parameters of the adapted layers for each stored one."""
    target_fraction: Annotated[float, Number, Field(gt=0.0, lt=1.0)] | None = None
    """Target: share of the parameters that the adapted layers store when the late stage begins."""
    target_params: Total | None = None
    """Target: stored parameters of the whole model."""

    @property
    def target(self) -> str | None:
        """The key that names the target, or None for a run without a late stage."""
        return next((key for key in TARGETS if getattr(self, key) is not None), None)
