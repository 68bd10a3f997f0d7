"""Sentences about keys of `tensor` that do something else than they seem to."""

from typing import Any

from comera_dist.config.tree import Config
from comera_dist.models.idle_keys import idle_tensor_keys
from comera_dist.models.large_ranks import large_ranks


def tensor_remarks(config: Config, facts: Any) -> list[str]:
    """On the keys that are set and change no matrix of a model, and on the ranks that all matrices clip."""
    idle = idle_tensor_keys(config, facts)
    have = "has" if len(idle) == 1 else "have"
    lines = [f"{', '.join(idle)} {have} no effect: the matrices of the model are the same without."] * bool(idle)
    return lines + large_ranks(config, facts)
