"""Reads a configuration: YAML file, command-line overrides, and every complaint about them at once."""

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from comera_dist.config.by_kind import MODEL, POLICY
from comera_dist.config.checks import impossible_combinations
from comera_dist.config.deepspeed import why_refused
from comera_dist.config.model_section import REST
from comera_dist.config.moved import MOVED, Moves
from comera_dist.config.own_sections import ChoosingSection
from comera_dist.config.registry import FORMATS
from comera_dist.config.tree import Config, Tensor
from comera_dist.config.yaml_tree import MOST_CHARACTERS, NotATree, Tree, read_tree, section_at, shown
from comera_dist.errors import ConfigError

Location = tuple[int | str, ...]  # of a mistake: keys, and indices of rules
WITHOUT_KEYS = ("dense", "tensor")  # formats without a section: the keys of tensor trains stand in `tensor` itself
MOST_SENTENCES = 100  # about one configuration at a time


Chosen = dict[str, type[BaseModel]]  # by name of a section whose keys depend on its kind: the section of that kind


def read_config(
    path: str | Path | None, overrides: Sequence[str] = (), note: Callable[[str], None] | None = None
) -> Config:
    """Configuration from a YAML file and `section.key=value` overrides.

    `note` is called with a sentence for each key that is read at a place where it no longer belongs. Raises ConfigError
    with one line a mistake: unknown keys, wrong types and impossible combinations together.
    """
    problems: list[str] = []
    tree, moves = _read_yaml(Path(path)) if path is not None else {}, Moves()
    moves.of_tree(tree)
    for override in overrides:
        _apply(tree, override, moves, problems)
    problems += dict.fromkeys(moves.problems)
    for sentence in dict.fromkeys(moves.notes) if note is not None else ():
        note(sentence)
    config = _validate(tree, problems)
    if config is not None:
        problems += impossible_combinations(config)
    if problems or config is None:
        raise ConfigError("\n".join(problems))
    return config


def _read_yaml(path: Path) -> Tree:
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


def _apply(tree: Tree, override: str, moves: Moves, problems: list[str]) -> None:
    """Write one `section.key=value` into the tree; a value is read as YAML, so numbers and lists keep their types."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        problems.append(f"{override!r} is not an override; write it as section.key=value, e.g. train.steps=100")
        return
    try:
        value = read_tree(text)
    except NotATree as error:
        problems.append(f"{key} = {shown(text)} is not a value: {error}")
        return
    key, value = moves.of_override(key, value)
    *sections, leaf = key.split(".")
    section_at(tree, sections)[leaf] = value


def _validate(tree: Tree, problems: list[str]) -> Config | None:
    """The configuration, or what is left of it without the offending keys, so that later checks can still speak."""
    ranks = tree.get("ranks")
    policy = ranks.get("policy") if isinstance(ranks, dict) else None
    chosen: Chosen = {"model": MODEL.section(tree.get("model")), "policy": POLICY.section(policy)}
    for _ in range(2):
        try:
            return Config.model_validate(tree)
        except ValidationError as error:
            for item in error.errors(include_url=False)[:MOST_SENTENCES]:
                location = item["loc"]
                sentence = _sentence(item, location, chosen)
                if sentence not in problems:  # what a word for a whole section did wrong cannot be dropped
                    problems.append(sentence)
                _drop(tree, location)
    return None


def _drop(tree: Any, location: Location) -> None:
    for part in location[:-1]:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return
    if isinstance(tree, dict):
        tree.pop(location[-1], None)


def _sentence(item: ErrorDetails, location: Location, chosen: Chosen) -> str:
    key, value = ".".join(str(part) for part in location), item["input"]
    if item["type"] == "unknown_kind" and isinstance(value, dict):
        key, value = (f"{key}.kind", value["kind"]) if "kind" in value else (key, value[REST])
    if item["type"] == "extra_forbidden":
        *sections, leaf = location
        known = _known_keys(sections, chosen)
        if leaf == REST:  # nobody wrote this key: `_apply` put a word for the whole section there
            section = ".".join(map(str, sections))
            return f"{section} = {shown(value)} is not possible: it is a section with keys {', '.join(sorted(known))}"
        if location[0] == "deepspeed":
            return why_refused(tuple(map(str, location[1:])), known)
        here = "".join(f"{section}." for section in sections)
        once = [old.removeprefix(here) for old in MOVED if old.startswith(here)]
        near = difflib.get_close_matches(str(leaf), [*known, *once], n=1, cutoff=0.5)
        if near:
            meant = here + near[0]
            return f"{key} is not a known key; did you mean {MOVED.get(meant, meant)}?"
        return f"{key} is not a known key; use one of {', '.join(sorted(known))}"
    return f"{key} = {shown(value)} is not possible: {item['msg'][0].lower()}{item['msg'][1:]}"


def _known_keys(sections: list[int | str], chosen: Chosen) -> list[str]:
    model: type[BaseModel] = Config
    for section in sections:
        if issubclass(model, ChoosingSection) and section in model.own_sections():
            model = model.own_sections()[section]
            continue
        field = model.model_fields.get(section) if isinstance(section, str) else None
        if model is Tensor and section in FORMATS.names():
            model = FORMATS[section].options
        if field is None:
            continue  # an index into a list of rules, or a format
        if section in chosen:
            model = chosen[section]
            continue
        models = [t for t in [field.annotation, *getattr(field.annotation, "__args__", ())] if _is_model(t)]
        model = models[0] if models else model
    formats = [name for name in FORMATS.names() if name not in WITHOUT_KEYS] if model is Tensor else []
    own = model.own_sections() if issubclass(model, ChoosingSection) else {}
    return [*model.model_fields, *formats, *own]


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
