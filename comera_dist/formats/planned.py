"""Planners whose results are kept for equal arguments."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

Result = TypeVar("Result")


def planned(planner: Callable[..., Result]) -> Callable[..., Result]:
    """`planner` with its results kept; its first argument is a frozen dataclass, the others are hashable.

    torch.compile calls the inner function while it traces, as if its result were a constant. Before torch 2.12 it does
    so only if all arguments are constants too, which a dataclass is not.
    """

    @cache
    def of_constants(kind: Any, values: tuple[Any, ...], *others: Any) -> Result:
        return planner(kind(*values), *others)

    @wraps(planner)
    def plan_of(shape: Any, *others: Any) -> Result:
        kind: Any = type(shape)
        return of_constants(kind, tuple([getattr(shape, name) for name in kind.__match_args__]), *others)

    plan_of.of_constants = of_constants  # type: ignore[attr-defined]  # where `compiled.py` finds it
    return plan_of
