"""Sources by kind. A kind is a class whose `usage` names it; each of text, pairs and clicks lists its kinds."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from comera_dist.errors import DataError
from data_prep.files.finding import each_once
from data_prep.files.skips import Skips


class HasWords(Protocol):
    @property
    def where(self) -> str:
        """Its place, for messages."""

    @property
    def words(self) -> str:
        """The text that decides its split: items with the same words are copies."""


Item = TypeVar("Item", bound=HasWords)


class Sources(Generic[Item]):
    """The items of several sources, one source after another, always in the same order.

    A kind is called with the part of a specification after the colon and with `settings`. Its `read(skips)` yields
    items. If it has `paths`, those of its files, they are set to the ones that no earlier source has. Raises DataError
    if a source is named twice, is of no known kind, or names something that does not exist.
    """

    kinds: Sequence[Any]

    def __init__(self, specs: Sequence[str], *settings: Any):
        check_named_once(specs)
        chosen = [chosen_kind(spec, self.kinds) for spec in specs]
        self.sources = [kind(rest, *settings) for kind, rest in chosen]
        seen = set[Path]()
        for source in self.sources:
            if hasattr(source, "paths"):
                source.paths = each_once(source.paths, seen)

    def read(self, skips: Skips) -> Iterator[Item]:
        """Items without a fault. All others are counted in `skips`."""
        for source in self.sources:
            yield from without_faults(source.read(skips), self.fault, skips)

    def fault(self, item: Item) -> tuple[str, str] | None:
        """The kind of fault of an item that cannot be used, and the reason in words."""
        raise NotImplementedError


def without_faults(
    items: Iterable[Item], fault_of: Callable[[Item], tuple[str, str] | None], skips: Skips
) -> Iterator[Item]:
    """Items of which `fault_of` finds no fault. All others are counted in `skips`."""
    for item in items:
        fault = fault_of(item)
        if fault is None:
            yield item
        else:
            skips.add(fault[0], item.where, fault[1])


def check_named_once(specs: Sequence[str]) -> None:
    """Raises DataError if one of `specs` occurs twice."""
    twice = [spec for number, spec in enumerate(specs) if spec in specs[:number]]
    if twice:
        raise DataError(f"source {twice[0]!r} is named twice; name it once, what it holds would count double")


def chosen_kind(spec: str, kinds: Sequence[Any]) -> tuple[Any, str]:
    """The kind that `spec` names, and the part of `spec` after the colon. Raises DataError if there is none."""
    name, _, rest = spec.partition(":")
    for kind in kinds:
        own_name, colon, _ = kind.usage.partition(":")
        if name == own_name and bool(rest) == bool(colon):
            return kind, rest
    *others, last = (kind.usage for kind in kinds)
    raise DataError(f"source {spec!r} is unknown; use {', '.join(others)} or {last}")
