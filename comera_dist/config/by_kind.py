"""Sections whose keys depend on the kind that they name: `model.kind` and `ranks.policy.kind`."""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from pydantic_core import PydanticCustomError

from comera_dist.config.fields import Section
from comera_dist.config.model_section import REST
from comera_dist.config.registry import DEFAULT_KIND, KINDS, POLICIES, Registry


@dataclass(frozen=True)
class ByKind:
    """Reads such a section: a tree of keys, or only the name of the kind. Without a name the kind is `usual`."""

    registry: Registry[Any]
    usual: str
    section_of: Callable[[Any], type[Section]] = lambda thing: thing

    def section(self, value: Any) -> type[Section]:
        """The section of the kind that `value` names; of the usual kind if there is no kind of that name."""
        kind = self._kind(value)
        return self.section_of(self.registry[kind if kind in self.registry.names() else self.usual])

    def read(self, value: Any) -> Any:
        """The section that `value` describes. Raises PydanticCustomError "unknown_kind" and pydantic's own errors."""
        if not isinstance(value, dict | str):
            return value
        kind, names = self._kind(value), self.registry.names()
        if kind not in names:
            raise PydanticCustomError("unknown_kind", "expected one of {kinds}", {"kinds": ", ".join(names)})
        keys = value if isinstance(value, dict) else {}
        if "kind" not in keys:
            keys = {"kind": kind} | {key: part for key, part in keys.items() if key != REST}
        return self.section(value).model_validate(keys)

    def _kind(self, value: Any) -> Any:
        """The kind that `value` names, which may be anything."""
        if isinstance(value, dict):
            return value.get("kind", value.get(REST, self.usual))
        return value if isinstance(value, str) else self.usual


MODEL = ByKind(KINDS, usual=DEFAULT_KIND, section_of=attrgetter("section"))
POLICY = ByKind(POLICIES, usual="threshold")
