"""What a run trains on and how it is judged: the tasks of all kinds of model look like `Task`."""

from typing import Any, Protocol, TypeVar

from comera_dist.config.registry import KINDS
from comera_dist.config.tree import Config
from comera_dist.data.batches import Examples
from comera_dist.data.contents import Contents
from comera_dist.data.vocabulary import Vocabulary
from comera_dist.errors import ConfigError

Facts = TypeVar("Facts")


class Task(Protocol[Facts]):
    """Opened data: `fingerprint` names them, `contents` are their files, `vocabulary` says what their numbers mean.

    `facts` are for the plan of the model. The argument `name` is a split of the data.
    """

    facts: Facts
    fingerprint: str
    contents: Contents
    vocabulary: Vocabulary

    def train(self) -> Examples: ...

    def held_out(self, name: str) -> Examples: ...

    def figures(self, measured: dict[str, Any], name: str) -> dict[str, float | None]:
        """`loss` in nats a target, and other figures, from what Engine.measure returned; None: there is no such."""


def open_task(config: Config) -> Task[Any]:
    """The task that `config.model` is made for, on `config.data`. Raises ConfigError and DataError."""
    task: Task[Any] = KINDS[config.model.kind].open_task(config)
    return task


def at_least(key: str, configured: int | None, found: int) -> int:
    """The configured size, or that of the data. ConfigError where it is configured too small for them."""
    if configured is not None and configured < found:
        raise ConfigError(f"{key} = {configured} and the data have {found}; set it to {found} or more, or remove it")
    return configured or found


def differs(key: str, configured: int, found: int) -> ConfigError:
    """The error for a size that must be that of the data."""
    return ConfigError(f"{key} = {configured} and the data have {found}; set it to {found}, or remove it")
