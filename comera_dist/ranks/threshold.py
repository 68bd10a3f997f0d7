"""The keys of the rank policy `threshold`: indices that have been unimportant for a while go, bonds that press grow."""

from typing import TYPE_CHECKING, Any, Literal

from comera_dist.config.fields import Fraction, NonNegative, Positive
from comera_dist.config.policy_section import PolicySection

if TYPE_CHECKING:
    from comera_dist.ranks.layout import GateLayout
    from comera_dist.ranks.policy import RankPolicy


class Threshold(PolicySection):
    """Early stage: cuts what stays below a share of its bond's importance. Late stage: what the budget takes."""

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
        """Counts, for each gate, the syncs since it fell below the line."""
        # Imported here, because a configuration is read without torch.
        from comera_dist.ranks.decision import PatientCuts

        return PatientCuts(self, layout, state)
