"""The keys of the rank policy `threshold`, which patient_cuts.py carries out. Imports no torch."""

from typing import TYPE_CHECKING, Any, Literal

from comera_dist.config.fields import Fraction, NonNegative, Positive
from comera_dist.config.policy_section import PolicySection

if TYPE_CHECKING:
    from comera_dist.ranks.layout import GateLayout
    from comera_dist.ranks.policy import RankPolicy


class Threshold(PolicySection):
    """Cuts indices that stay unimportant, and lets bonds grow in which every index matters.

    An index is unimportant in the early stage below a share of its bond's importance, in the late stage if it must go
    to meet the allowed size.
    """

    kind: Literal["threshold"] = "threshold"
    """Name of this policy."""
    threshold: Fraction = 1e-3
    """An index below this share of its bond's root-mean-square importance may be cut."""
    patience: Positive = 2
    """Successive syncs that an index must stay below the threshold before it is cut."""
    shrink_when: Fraction = 0.05
    """Cores are cut when that saves at least this share of the adapted layers' parameters."""
    grow: NonNegative = 0
    """Indices that a bond gains at a sync of the early stage if none of its indices is weak."""

    def begin(self, layout: "GateLayout", state: dict[str, Any] | None) -> "RankPolicy":
        """The policy at the start of a run, or with the counters of a checkpoint's `state`."""
        # Imported here, because a configuration is read without torch.
        from comera_dist.ranks.patient_cuts import PatientCuts

        return PatientCuts(self, layout, state)
