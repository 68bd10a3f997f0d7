"""Keys of a configuration that have no effect on the model of an engine, and how a run says so."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from torch import nn

from comera_dist.config.tree import Config
from comera_dist.formats.capabilities import plan_of
from comera_dist.optim.base import Group
from comera_dist.optim.groups import idle_rates
from comera_dist.runtime.processes import Processes


def idle_keys(model: nn.Module, config: Config, is_recomputed: bool, groups: Sequence[Group] | None) -> Iterator[str]:
    """One sentence for each key that changes nothing for this model.

    `is_recomputed` says whether the model has blocks that can recompute their activations, `groups` are the parameter
    groups of the configured optimizer; None: the caller made an optimizer of his own.
    """
    mode = config.train.activation_checkpointing
    if mode != "none" and not is_recomputed:
        reason = "the model that was handed in has no CheckpointedBlock; derive its blocks from it"
        yield f"train.activation_checkpointing = {mode} has no effect: {reason}."
    if config.train.precision == "fp8" and all(plan_of(module) is None for module in model.modules()):
        reason = "the model that was handed in has no layer of a format; make its layers with comera_dist.tensorize"
        yield f"train.precision = fp8 is bf16 here: {reason}."
    if groups is not None:
        yield from idle_rates(groups, model, config.optim)


@cache
def say_once(processes: Processes, run: Path, text: str) -> None:
    """Prints `text` once for a run, which builds many engines if its ranks change."""
    processes.say(text)
