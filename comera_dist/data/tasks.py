"""The task of a run: its data and the figures by which it is judged. Every kind of model has a task like `Task`."""

from typing import Any, Protocol, TypeVar

from comera_dist.config.registry import KINDS
from comera_dist.config.tree import Config
from comera_dist.data.batches import Examples
from comera_dist.data.contents import Contents
from comera_dist.data.mixture import Mixture
from comera_dist.data.vocabulary import Vocabulary
from comera_dist.errors import ConfigError

Facts = TypeVar("Facts")


class Task(Protocol[Facts]):
    """Opened data. The argument `name` is a split of the data."""

    facts: Facts  # sizes of the data that the plan of the model needs
    fingerprint: str  # names the data
    contents: Contents  # their files
    vocabulary: Vocabulary  # the meaning of their numbers

    def train(self) -> Examples: ...

    def held_out(self, name: str) -> Examples: ...

    def figures(self, measured: dict[str, Any], name: str) -> dict[str, float | None]:
        """`loss` in nats per target, and other figures, from the result of Engine.measure. None: undefined here."""


def open_task(config: Config) -> Task[Any] | Mixture:
    """The task of `config.model.kind` on `config.data`. Raises ConfigError and DataError."""
    if not config.data.mixture:
        return _open_one(config)
    parts = {part.name: config.data.of_corpus(part.corpus) for part in config.data.mixture}
    tasks = {name: _open_one(config.model_copy(update={"data": data})) for name, data in parts.items()}
    return Mixture(tasks, config.data.shares)


def _open_one(config: Config) -> Task[Any]:
    task: Task[Any] = KINDS[config.model.kind].open_task(config)
    return task


def at_least(key: str, configured: int | None, found: int) -> int:
    """The configured size, or the size of the data. Raises ConfigError if it is configured too small for them."""
    if configured is not None and configured < found:
        raise ConfigError(f"{key} = {configured} and the data have {found}; set it to {found} or more, or remove it")
    return configured or found


def differs(key: str, configured: int, found: int) -> ConfigError:
    """The error for a configured size that is not the size of the data."""
    return ConfigError(f"{key} = {configured} and the data have {found}; set it to {found}, or remove it")
