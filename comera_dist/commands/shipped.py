"""Finds configs/ and data_prep/: beside the package in a clone, inside it once a wheel is installed."""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def shipped(folder: str) -> Path:
    """The folder `configs` or `data_prep`; pyproject.toml says where a wheel carries them."""
    inside = PACKAGE / "_shipped" / folder
    return inside if inside.is_dir() else PACKAGE.parent / folder


def config_file(name: str) -> Path:
    """The file `name`, or if there is none, the shipped configuration of that name, such as `quickstart`."""
    by_name = shipped("configs") / f"{name}.yaml"
    return by_name if os.path.isfile(by_name) and not os.path.exists(name) else Path(name)
