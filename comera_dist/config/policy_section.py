"""What the sections `ranks.policy` of all rank policies have in common."""

from typing import Any

from comera_dist.config.fields import Section


class PolicySection(Section):
    """Keys of one rank policy. A subclass adds its keys and `begin`.

    The subclass of the default policy imports no torch before `begin` is called, so that reading a configuration takes
    a fraction of a second.
    """

    kind: str
    """Name of the policy."""

    def begin(self, layout: Any, state: dict[str, Any] | None) -> Any:
        """The ranks.policy.RankPolicy of these keys, for the gates of a ranks.layout.GateLayout.

        `state` is the value that the policy's own `state` returned for a checkpoint, or None when a run begins.
        """
        raise NotImplementedError

    def problems(self, config: Any) -> list[str]:
        """One sentence for each value of these keys that does not fit the rest of `config`: found, expected, remedy."""
        return []
