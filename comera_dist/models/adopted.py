"""Checks of the configuration of a model of transformers that becomes one of ours. This file imports no torch."""

from collections.abc import Iterable, Mapping
from typing import Any

from comera_dist.errors import ConfigError

Settings = Mapping[str, Any]  # the content of a config.json


MOST_SHOWN = 60  # chosen: characters of a value in an error


def check_numbers(settings: Settings, keys: Iterable[str]) -> None:
    """Raises ConfigError if one of `keys` is no whole number above 0."""
    for key in keys:
        found = settings.get(key)
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise ConfigError(
                f"config.json has no number {key} above 0; take a complete one, as save_pretrained writes it"
            )


def check_values(settings: Settings, expected: Mapping[str, Any], ours: str) -> None:
    """Raises ConfigError if a key has another value than `expected`, which transformers takes if it is absent.

    `ours` names our model in the error.
    """
    for key, value in expected.items():
        found = settings.get(key)
        if found is not None and found != value:
            raise ConfigError(f"config.json has {key} = {shown(found)}, and {ours} has {value}; take another model")


def value_of(settings: Settings, key: str, default: float) -> float:
    """A number or truth value; `default` if it is absent or null. Raises ConfigError for anything else."""
    found = settings.get(key)
    if found is not None and not isinstance(found, int | float):
        raise ConfigError(
            f"config.json has {key} = {shown(found)}, expected a value like {default}; take another model"
        )
    return default if found is None else found


def shown(value: object) -> str:
    """A value of a config.json in an error: a long or deep one is not written out."""
    if isinstance(value, list | dict):
        return "an object" if isinstance(value, dict) else "a list"
    return str(value)[:MOST_SHOWN]
