"""Reads a configuration: YAML file, command-line overrides, and every complaint about them at once."""

import difflib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from comera_dist.config.checks import impossible_combinations
from comera_dist.config.deepspeed import why_refused
from comera_dist.config.model_section import REST
from comera_dist.config.registry import FORMATS, KINDS
from comera_dist.config.tree import Config, Tensor
from comera_dist.config.yaml_tree import MOST_CHARACTERS, NotATree, read_tree
from comera_dist.errors import ConfigError

LONGEST_VALUE = 80  # characters of a value that a sentence repeats
WITHOUT_KEYS = ("dense", "tensor")  # formats without a section: the keys of tensor trains stand in `tensor` itself
MOST_SENTENCES = 100  # about one configuration at a time


def read_config(path: str | Path | None, overrides: list[str] = ()) -> Config:
    """Configuration from a YAML file and `section.key=value` overrides.

    Raises ConfigError with one line a mistake: unknown keys, wrong types and impossible combinations together.
    """
    problems: list[str] = []
    tree = _read_yaml(Path(path)) if path is not None else {}
    for override in overrides:
        _apply(tree, override, problems)
    config = _validate(tree, problems)
    if config is not None:
        problems += impossible_combinations(config)
    if problems:
        raise ConfigError("\n".join(problems))
    return config


def _read_yaml(path: Path) -> dict:
    try:
        with path.open(encoding="utf-8") as file:
            tree = read_tree(file.read(MOST_CHARACTERS + 1))
    except OSError as error:
        raise ConfigError(
            f"--config {path} cannot be read ({error.strerror}); name an existing file such as configs/quickstart.yaml"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"--config {path} is no text in UTF-8; name a YAML file") from None
    except NotATree as error:
        raise ConfigError(f"--config {path} is no configuration: {error}") from None
    if not isinstance(tree or {}, dict):
        raise ConfigError(f"--config {path} holds a {type(tree).__name__}; expected sections such as `train:`")
    return tree or {}


def _apply(tree: dict, override: str, problems: list[str]) -> None:
    """Write one `section.key=value` into the tree; a value is read as YAML, so numbers and lists keep their types."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        problems.append(f"{override!r} is not an override; write it as section.key=value, e.g. train.steps=100")
        return
    try:
        value = read_tree(text)
    except NotATree as error:
        problems.append(f"{key} = {_shown(text)} is not a value: {error}")
        return
    *sections, leaf = key.split(".")
    for section in sections:
        # A word in place of a section (model.format=dense) still holds for the keys that nobody names.
        if not isinstance(tree.get(section), dict):
            tree[section] = {REST: tree[section]} if isinstance(tree.get(section), str) else {}
        tree = tree[section]
    tree[leaf] = value


def _validate(tree: dict, problems: list[str]) -> Config | None:
    """The configuration, or what is left of it without the offending keys, so that later checks can still speak."""
    kind = _kind_of(tree)
    for _ in range(2):
        try:
            return Config.model_validate(tree)
        except ValidationError as error:
            for item in error.errors(include_url=False)[:MOST_SENTENCES]:
                location = item["loc"]
                sentence = _sentence(item, location, kind)
                if sentence not in problems:  # what a word for a whole section did wrong cannot be dropped
                    problems.append(sentence)
                _drop(tree, location)
    return None


def _kind_of(tree: dict) -> str:
    """The kind of model that the tree asks for, a decoder where it asks for none that there is."""
    model = tree.get("model")
    kind = model.get("kind") if isinstance(model, dict) else None
    return kind if kind in KINDS.names() else "decoder"


def _drop(tree: Any, location: tuple) -> None:
    for part in location[:-1]:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return
    if isinstance(tree, dict):
        tree.pop(location[-1], None)


def _sentence(item: dict, location: tuple, kind: str) -> str:
    key = ".".join(str(part) for part in location)
    if item["type"] == "unknown_kind":
        return f"model.kind = {_shown(item['input'].get('kind'))} is not possible: {item['msg']}"
    if item["type"] == "extra_forbidden":
        *sections, leaf = location
        known = _known_keys(sections, kind)
        if leaf == REST:  # nobody wrote this key: `_apply` put a word for the whole section there
            section = ".".join(map(str, sections))
            shown = _shown(item["input"])
            return f"{section} = {shown} is not possible: it is a section with keys {', '.join(sorted(known))}"
        if location[0] == "deepspeed":
            return why_refused(location[1:], known)
        near = difflib.get_close_matches(str(leaf), known, n=1, cutoff=0.5)
        if near:
            return f"{key} is not a known key; did you mean {'.'.join([*map(str, sections), near[0]])}?"
        return f"{key} is not a known key; use one of {', '.join(sorted(known))}"
    return f"{key} = {_shown(item['input'])} is not possible: {item['msg'][0].lower()}{item['msg'][1:]}"


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python prints, keys of keys without end
        return f"a very large {type(value).__name__}"
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _known_keys(sections: list, kind: str) -> list[str]:
    model: type[BaseModel] = Config
    for section in sections:
        field = model.model_fields.get(section) if isinstance(section, str) else None
        if model is Tensor and section in FORMATS.names():
            model = FORMATS[section].options
        if field is None:
            continue  # an index into a list of rules, or a format
        if section == "model":
            model = KINDS[kind]
            continue
        models = [t for t in [field.annotation, *getattr(field.annotation, "__args__", ())] if _is_model(t)]
        model = models[0] if models else model
    formats = [name for name in FORMATS.names() if name not in WITHOUT_KEYS] if model is Tensor else []
    return [*model.model_fields, *formats]


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
