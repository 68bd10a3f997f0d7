"""The state of an optimizer of `build_optimizer`, as a loop of the caller's saves and loads it."""

from functools import partial
from typing import Any

from torch.optim import Optimizer

from comera_dist.optim.base import Method, State
from comera_dist.optim.narrow_moments import is_encoded, narrow, widen


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
        for parameter in group["params"]:
            if group["method"].can_round and parameter in optimizer.state:
                _as_kept(optimizer.state[parameter], group["method"])


def _as_kept(state: State, method: Method) -> None:
    """Gives moments the form in which the method keeps them, whatever form they were saved in.

    torch has made all of them, codes too, numbers of the parameter's dtype.
    """
    form = method.config.moments
    if form != "fp32" or is_encoded(state):
        widen(state, method.roles)
    if form != "fp32":
        narrow(state, method.roles, form, "loaded")  # the same numbers again, if they were saved in this form
