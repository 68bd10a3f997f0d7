"""The state of an optimizer of `build_optimizer`, as a loop of the caller's saves and loads it."""

from functools import partial
from typing import Any

from torch.optim import Optimizer

from comera_dist.optim.base import Method


def leave_methods_out(optimizer: Optimizer) -> None:
    """Takes the groups' methods out of `optimizer.state_dict()`, and keeps them where a state is loaded.

    `torch.load` reads numbers, strings and tensors, and refuses objects of other classes unless it is told otherwise.
    """
    methods = {group["name"]: group["method"] for group in optimizer.param_groups}
    optimizer.register_state_dict_post_hook(_without_methods)
    optimizer.register_load_state_dict_post_hook(partial(_with_methods, methods))


def _without_methods(optimizer: Optimizer, state: dict[str, Any]) -> None:
    for group in state["param_groups"]:
        del group["method"]


def _with_methods(methods: dict[str, Method], optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        group["method"] = methods[group["name"]]
