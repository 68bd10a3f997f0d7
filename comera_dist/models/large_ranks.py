"""Ranks in `tensor` that are larger than any matrix of a model can have."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

from comera_dist.config.fields import Section
from comera_dist.config.tensor_section import Tensor
from comera_dist.config.tree import Config
from comera_dist.models.family import plan_model
from comera_dist.models.idle_keys import RULES, plan_with

RANKS = ("rank", "embedding_rank")  # names of keys and options; `outer_rank` is a bound that need not be reached
Place = tuple[str | int, ...]  # of a value in `tensor`: names of keys, and numbers of rules


def large_ranks(config: Config, facts: Any) -> list[str]:
    """One sentence for each rank that is set and that all matrices clip, with the smallest that gives the same model.

    A rank that one matrix has in full is not large, and neither is one by which no matrix is planned.
    """
    planned, section = plan_model(config, facts), config.tensor

    def is_same(place: Place, rank: int) -> bool:
        return plan_with(config, _replaced(section, place, rank), facts) == planned

    return [
        f"{_name(section, place)} = {rank} is more than any matrix can have: the model is the same with "
        f"{_smallest(is_same, place, rank)}."
        for place, rank in _set_ranks(section, ())
        if rank > 1 and is_same(place, rank - 1) and not is_same(place, 1)
    ]


def _smallest(is_same: Callable[[Place, int], bool], place: Place, rank: int) -> int:
    """The smallest rank that gives the same model as `rank`."""
    return 1 + bisect_left(range(1, rank + 1), True, key=lambda other: is_same(place, other))


def _set_ranks(node: Any, place: Place) -> Iterator[tuple[Place, int]]:
    """The ranks in a part of `tensor` that differ from their defaults, with their places."""
    for name, value in _parts(node):
        if isinstance(value, Section | tuple | dict):
            yield from _set_ranks(value, (*place, name))
        elif isinstance(value, int) and name in RANKS and value != _default(node, name):
            yield (*place, name), value


def _parts(node: Section | tuple[Any, ...] | dict[str, Any]) -> Iterator[tuple[str | int, Any]]:
    if isinstance(node, Section):
        yield from node
    else:
        yield from enumerate(node) if isinstance(node, tuple) else node.items()


def _default(node: Any, name: str | int) -> Any:
    """The default of a key; None for an option of a rule."""
    return type(node).model_fields[str(name)].default if isinstance(node, Section) else None


def _replaced(node: Any, place: Place, value: Any) -> Any:
    """A part of `tensor` with another value at a place in it."""
    if not place:
        return value
    first, *rest = place
    if isinstance(node, Section):
        return node.model_copy(update={str(first): _replaced(getattr(node, str(first)), tuple(rest), value)})
    parts = {name: _replaced(part, tuple(rest), value) if name == first else part for name, part in _parts(node)}
    return tuple(parts.values()) if isinstance(node, tuple) else parts


def _name(section: Tensor, place: Place) -> str:
    """The name of a key of `tensor`, or of a rule in it."""
    key, *rest = map(str, place)
    if key not in RULES:
        return ".".join(("tensor", key, *rest))
    rule = getattr(section, key)[int(rest[0])]
    return f"{rest[-1]} of the rule of tensor.{key} for {rule.match!r}"
