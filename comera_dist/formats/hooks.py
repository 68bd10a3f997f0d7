"""Hooks of a layer, which must not be lost when another one takes its place."""

from torch import nn

# Attributes of nn.Module by which it knows its hooks; torch has no public list of them.
HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
# How it calls them.
MANNERS = (
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_is_full_backward_hook",
)


def has_hooks(layer: nn.Module) -> bool:
    """Whether the layer or one of its own parameters has a hook."""
    of_parameters = (
        getattr(parameter, hooks, None)
        for parameter in layer.parameters(recurse=False)
        for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks")
    )
    return any(getattr(layer, hooks) for hooks in HOOKS) or any(of_parameters)


def hand_over(old: nn.Module, new: nn.Module) -> None:
    """Gives `new` the hooks of `old`, whose handles go on to remove them, and its mode of training."""
    for name in (*HOOKS, *MANNERS):
        setattr(new, name, getattr(old, name))
    new.train(old.training)
