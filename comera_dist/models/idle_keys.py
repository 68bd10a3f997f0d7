"""Keys of `tensor` by which no matrix of a model is planned."""

from collections.abc import Iterator
from typing import Any

from comera_dist.config.fields import Section
from comera_dist.config.tensor_section import Tensor
from comera_dist.config.tree import Config
from comera_dist.errors import ConfigError
from comera_dist.formats.plan import Plan
from comera_dist.models.family import plan_model

RULES = ("layers", "embeddings")  # keys of `tensor` that are lists of rules


def idle_tensor_keys(config: Config, facts: Any) -> list[str]:
    """Keys that are set and change no matrix, as `tensor.rank = 64`, and such rules. The budget has a check of its own.

    A key is set if it differs from its default. It changes a matrix if the default or, for a number, 1 does. The latter
    tells a rank that is what another key would give it anyway.
    """
    planned = plan_model(config, facts)
    return [
        key
        for key, others in [*_set_keys(config.tensor), *_rules(config.tensor)]
        if all(plan_with(config, tensor, facts) == planned for tensor in others)
    ]


def plan_with(config: Config, tensor: Tensor, facts: Any) -> Plan | None:
    """The plan with another section; None if there is none."""
    try:
        return plan_model(config.model_copy(update={"tensor": tensor}), facts)
    except ConfigError:
        return None


def _set_keys(section: Tensor) -> Iterator[tuple[str, list[Tensor]]]:
    """Each key that is set, with its value, and the sections in which it has other values."""
    for key, value in section:
        if key in (*RULES, "budget"):
            continue
        if not isinstance(value, Section):
            others = [section.model_copy(update={key: other}) for other in _others(section, key)]
            if others:
                yield f"tensor.{key} = {value}", others
            continue
        for name, found in value:
            options = [value.model_copy(update={name: other}) for other in _others(value, name)]
            if options:
                yield f"tensor.{key}.{name} = {found}", [section.with_options(key, other) for other in options]


def _rules(section: Tensor) -> Iterator[tuple[str, list[Tensor]]]:
    """Each rule, and the sections without it and with a dense format in it.

    The latter tells a rule that names modes which the planner chooses anyway: it holds them where the planner changes.
    """
    for key in RULES:
        rules = getattr(section, key)
        for number, rule in enumerate(rules):
            dense = type(rule)(match=rule.match, format="dense")
            others = [(*rules[:number], *other, *rules[number + 1 :]) for other in ((), (dense,))]
            sections = [section.model_copy(update={key: changed}) for changed in others]
            yield f"the rule of tensor.{key} for {rule.match!r}", sections


def _others(section: Section, key: str) -> list[Any]:
    """Other values of a key: its default and, in place of a number, 1. None if it has its default."""
    value, usual = getattr(section, key), getattr(type(section)(), key)
    if value == usual:
        return []
    return [usual, 1] if isinstance(value, int) else [usual]
