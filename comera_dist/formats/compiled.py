"""What torch.compile must know about the layers of all formats."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch


def plans_are_constants() -> None:
    """Lets a compiler take the plans that layers make from shapes for constants, so that no plan breaks a graph."""
    for plan in _cached_functions():
        torch.compiler.assume_constant_result(plan)  # type: ignore[no-untyped-call]  # torch has no annotation


def _cached_functions() -> Iterator[Callable[..., Any]]:
    """The undecorated functions of `formats` that are cached: plans made from shapes alone.

    Dynamo traces through the cache; tracing the planner would cause graph breaks, so these are marked as constant.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("comera_dist.formats."):
            kept = [getattr(thing, "of_constants", thing) for thing in vars(module).values()]
            yield from (thing.__wrapped__ for thing in kept if hasattr(thing, "cache_parameters"))
