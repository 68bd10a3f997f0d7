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
    """Reads such a section: a tree of keys, or a word alone, which is the kind. `usual` is the kind that none names."""

    registry: Registry[Any]
    usual: str
    section_of: Callable[[Any], type[Section]] = lambda thing: thing

    def kind(self, value: Any) -> Any:
        """The kind that `value` asks for, whether or not there is one of that name."""
        if isinstance(value, dict):
            return value.get("kind", value.get(REST, self.usual))
        return value if isinstance(value, str) else self.usual

    def section(self, value: Any) -> type[Section]:
        """The section of the kind that `value` asks for, of the usual one where there is no such kind."""
        kind = self.kind(value)
        return self.section_of(self.registry[kind if kind in self.registry.names() else self.usual])

    def read(self, value: Any) -> Any:
        """The section that `value` describes. Raises PydanticCustomError "unknown_kind" and pydantic's own errors."""
        if not isinstance(value, dict | str):
            return value
        names = self.registry.names()
        if self.kind(value) not in names:
            raise PydanticCustomError("unknown_kind", "expected one of {kinds}", {"kinds": ", ".join(names)})
        keys = value if isinstance(value, dict) else {}
        if "kind" not in keys:
            keys = {"kind": self.kind(value), **{key: part for key, part in keys.items() if key != REST}}
        return self.section(value).model_validate(keys)


MODEL = ByKind(KINDS, usual=DEFAULT_KIND, section_of=attrgetter("section"))
POLICY = ByKind(POLICIES, usual="threshold")
