"""The formats that a configuration names, and whether they have a capability. This needs no plan, so no data either.

A rule of `tensor` may match any layer; so the format of a rule counts for every kind of layer.
"""

from collections.abc import Collection

from comera_dist.config.registry import FORMATS
from comera_dist.config.tensor_section import Budget
from comera_dist.config.tree import Config
from comera_dist.formats.base import Resizable, Tables

CHOOSES = "auto"  # name of the format whose matrices `tensor.budget` sizes
TABLES = "embedding"  # key of `model.format` for embedding tables; its other keys are for linear layers


def format_problems(config: Config) -> list[str]:
    """One sentence for each capability that the configuration needs and that none of its formats has."""
    problems = [
        f"{key} = {name} is not possible: this format stores no tables; set it to another"
        for key, name in _table_formats(config).items()
        if not isinstance(FORMATS[name], Tables)
    ]
    if config.ranks.adapt and not may_store(config, Resizable):
        problems.append(
            "ranks.adapt = true and no layer has ranks that can change; set model.format=tensor or ranks.adapt=false"
        )
    if config.tensor.budget != Budget() and CHOOSES not in _named(config):
        problems.append(
            f"tensor.budget is set and no matrix has the format {CHOOSES}, whose size it decides; set "
            f"model.format={CHOOSES} or remove tensor.budget"
        )
    return problems


def may_store(config: Config, plan: type, keys: Collection[str] | None = None) -> bool:
    """Whether a layer may have a plan of the class `plan`, e.g. `Resizable`.

    `keys` are the keys of `model.format` whose linear layers count; by default all layers count, and tables too.
    """
    if keys is not None and not keys:
        return False
    linear = _linear_formats(config, keys)
    tables = set(_table_formats(config).values()) if keys is None else set()
    # In the order of the registry, because its first formats import no torch.
    for name in FORMATS.names():
        if name in linear and issubclass(FORMATS[name].linear_plan, plan):
            return True
        if name in tables and isinstance(FORMATS[name], Tables) and issubclass(FORMATS[name].table_plan, plan):
            return True
    return False


def _named(config: Config) -> set[str | None]:
    return _linear_formats(config, None) | set(_table_formats(config).values())


def _linear_formats(config: Config, keys: Collection[str] | None) -> set[str | None]:
    """Formats of the linear layers of these keys of `model.format` (None: of all), and of all rules."""
    formats = {name for key, name in config.model.format if key != TABLES and (keys is None or key in keys)}
    return formats | {rule.format for rule in config.tensor.layers}


def _table_formats(config: Config) -> dict[str, str]:
    """Format of embedding tables by the key that sets it."""
    rules = enumerate(config.tensor.embeddings)
    formats = {f"tensor.embeddings.{index}.format": rule.format for index, rule in rules if rule.format is not None}
    own = getattr(config.model.format, TABLES, None)  # a kind of model may have no tables
    return formats if own is None else {f"model.format.{TABLES}": own, **formats}
