"""Checks of the configuration of a model of transformers that becomes one of ours. This file imports no torch."""

from collections.abc import Iterable, Mapping
from typing import Any

from comera_dist.errors import ConfigError

Settings = Mapping[str, Any]  # the content of a config.json


def check_numbers(settings: Settings, keys: Iterable[str]) -> None:
    """Raises ConfigError if one of `keys` is no whole number."""
    missing = [key for key in keys if not isinstance(settings.get(key), int)]
    if missing:
        raise ConfigError(f"config.json has no number {missing[0]}; take a complete one, as save_pretrained writes it")


def check_values(settings: Settings, expected: Mapping[str, Any], ours: str) -> None:
    """Raises ConfigError if a key has another value than `expected`, which transformers takes if it is absent.

    `ours` names our model in the error.
    """
    for key, value in expected.items():
        found = settings.get(key)
        if found is not None and found != value:
            raise ConfigError(f"config.json has {key} = {found}, and {ours} has {value}; take another model")
