"""Reads a configuration: YAML file and command-line overrides. All mistakes are reported at once."""

import difflib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from comera_dist.config.by_kind import MODEL, POLICY
from comera_dist.config.checks import impossible_combinations
from comera_dist.config.deepspeed import why_refused
from comera_dist.config.idle import idle_keys
from comera_dist.config.model_section import REST
from comera_dist.config.moved import MOVED, Moves
from comera_dist.config.own_sections import ChoosingSection
from comera_dist.config.registry import FORMATS
from comera_dist.config.secrets import redacted, secret_values
from comera_dist.config.tensor_section import WITHOUT_KEYS, Tensor
from comera_dist.config.tree import Config
from comera_dist.config.yaml_tree import MOST_CHARACTERS, NotATree, Tree, read_tree, section_at, shown
from comera_dist.errors import ConfigError

MOST_SENTENCES = 100  # about one configuration at a time; chosen: nobody reads more
ALIKE = 0.5  # similarity from which on a key is suggested; chosen, a little below the default of difflib (0.6)

Location = tuple[int | str, ...]  # of a mistake: keys, and indices of rules
Chosen = dict[str, type[BaseModel]]  # section of the chosen kind, by name of the section whose keys depend on its kind


def read_config(
    path: str | Path | None, overrides: Sequence[str] = (), note: Callable[[str], None] | None = None
) -> Config:
    """Configuration from a YAML file and `section.key=value` overrides.

    `note` is called with a sentence for each key that is read at a place where it no longer belongs. Raises ConfigError
    with one line for each mistake: unknown keys, wrong types and impossible combinations together.
    """
    problems: list[str] = []
    tree, moves = _read_yaml(Path(path)) if path is not None else {}, Moves()
    moves.of_tree(tree)
    for override in overrides:
        _apply(tree, override, moves, problems)
    problems += dict.fromkeys(moves.problems)
    if note is not None:
        for sentence in dict.fromkeys(moves.notes):
            note(sentence)
    problems += _secrets(tree, secret_values())
    config = _validate(tree, problems)
    if config is not None:
        problems += [*impossible_combinations(config), *idle_keys(config).values()]
    return _without_mistakes(config, problems)


def read_own_config(path: Path) -> Config:
    """The configuration that a run has written, without checks of combinations.

    The version that wrote it has checked which values go together, and a later one may be stricter. Raises ConfigError
    for a file that is no configuration.
    """
    problems: list[str] = []
    tree = _read_yaml(path)
    Moves().of_tree(tree)
    return _without_mistakes(_validate(tree, problems), problems)


def _without_mistakes(config: Config | None, problems: list[str]) -> Config:
    """Raises ConfigError if there are problems: without any there is a configuration."""
    if problems or config is None:
        raise ConfigError("\n".join(problems))
    return config


def _read_yaml(path: Path) -> Tree:
    try:
        with path.open(encoding="utf-8") as file:
            tree = read_tree(file.read(MOST_CHARACTERS + 1)) or {}
    except OSError as error:
        raise ConfigError(
            f"--config {path} cannot be read ({error.strerror}); name an existing file such as configs/quickstart.yaml"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"--config {path} is not text in UTF-8; name a YAML file") from None
    except NotATree as error:
        raise ConfigError(f"--config {path} is not a configuration: {error}") from None
    except ValueError as error:  # a null byte or a lone surrogate
        raise ConfigError(f"--config {shown(str(path))} is not a name of a file ({error}); name a YAML file") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"--config {path} holds a {type(tree).__name__}; expected sections such as `train:`")
    return tree


def _apply(tree: Tree, override: str, moves: Moves, problems: list[str]) -> None:
    """Write one `section.key=value` into the tree; a value is read as YAML, so numbers and lists keep their types."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        problems.append(f"{shown(override)} is not an override; write it as section.key=value, e.g. train.steps=100")
        return
    if not text.strip():  # YAML reads null, and so a run would start without what an unset variable was to name
        problems.append(f"{key} was given without a value; write {key}=null to give it none")
        return
    try:
        value = read_tree(text)
    except NotATree as error:
        problems.append(f"{key} = {shown(text)} is not a value: {error}")
        return
    *sections, leaf = moves.of_override(key, value).split(".")
    section_at(tree, sections)[leaf] = value


def _secrets(tree: Any, secrets: Sequence[str], place: str = "") -> Iterator[str]:
    """A sentence for each text with a URL's password or one of `secrets`: the files of a run and W&B would show it."""
    if isinstance(tree, dict | list):
        for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _secrets(part, secrets, f"{place}.{key}" if place else str(key))
    elif isinstance(tree, str) and redacted(tree, secrets) != tree:
        yield (
            f"{place} = {shown(tree)} holds a password or the value of an environment variable that is secret, and "
            f"the files of the run would show it; remove it"
        )


def _validate(tree: Tree, problems: list[str]) -> Config | None:
    """The configuration. Keys with mistakes are dropped, so that the later checks report theirs in the same run."""
    ranks = tree.get("ranks")
    policy = ranks.get("policy") if isinstance(ranks, dict) else None
    chosen: Chosen = {"model": MODEL.section(tree.get("model")), "policy": POLICY.section(policy)}
    for _ in range(2):
        try:
            return Config.model_validate(tree)
        except ValidationError as error:
            for item in error.errors(include_url=False)[:MOST_SENTENCES]:
                sentence = _sentence(item, chosen)
                # A wrong word for a whole section cannot be dropped from the tree, so it is found twice.
                if sentence not in problems:
                    problems.append(sentence)
                _drop(tree, item["loc"])
    return None


def _drop(tree: Any, location: Location) -> None:
    with suppress(KeyError, IndexError, TypeError):  # a place may be inside of a validator's own section
        for part in location[:-1]:
            tree = tree[part]
        if isinstance(tree, dict):
            tree.pop(location[-1], None)


def _sentence(item: ErrorDetails, chosen: Chosen) -> str:
    if item["type"] == "extra_forbidden":
        return _unknown_key(item["loc"], item["input"], chosen)
    key, value = ".".join(map(str, item["loc"])), item["input"]
    if item["type"] == "unknown_kind" and isinstance(value, dict):
        key, value = (f"{key}.kind", value["kind"]) if "kind" in value else (key, value[REST])
    if item["type"] == "string_type":
        return f"{key} = {shown(value)} is not possible: expected text; put it in quotes, e.g. {key}=\"'2026'\""
    return f"{key} = {shown(value)} is not possible: {item['msg'][0].lower()}{item['msg'][1:]}"


def _unknown_key(location: Location, value: Any, chosen: Chosen) -> str:
    *sections, leaf = map(str, location)
    known = _known_keys(location[:-1], chosen)
    if leaf == REST:  # nobody wrote this key: `_apply` put a word for the whole section there
        section = ".".join(sections)
        return f"{section} = {shown(value)} is not possible: it is a section with keys {', '.join(sorted(known))}"
    if location[0] == "deepspeed":
        return why_refused(".".join([*sections, leaf][1:]), known)
    here = "".join(f"{section}." for section in sections)
    old = [key.removeprefix(here) for key in MOVED if key.startswith(here)]
    near = difflib.get_close_matches(leaf, [*known, *old], n=1, cutoff=ALIKE)
    meant = [MOVED.get(here + key, here + key) for key in near]
    hint = f"did you mean {meant[0]}?" if meant else f"use one of {', '.join(sorted(known))}"
    return f"{here}{leaf} is not a known key; {hint}"


def _known_keys(location: Location, chosen: Chosen) -> list[str]:
    """Keys of the section at `location`, in which other parts than names of sections are passed over."""
    model: type[BaseModel] = Config
    for part in location:
        model = _section_in(model, str(part), chosen) or model
    formats = [name for name in FORMATS.names() if name not in WITHOUT_KEYS] if model is Tensor else []
    own = model.own_sections() if issubclass(model, ChoosingSection) else {}
    return [*model.model_fields, *formats, *own]


def _section_in(model: type[BaseModel], name: str, chosen: Chosen) -> type[BaseModel] | None:
    """The section that the key `name` of the section `model` holds: by itself, in a list, or beside null."""
    if issubclass(model, ChoosingSection) and name in model.own_sections():
        return model.own_sections()[name]
    if model is Tensor and name in FORMATS.names():
        options: type[BaseModel] = FORMATS[name].options
        return options
    if name not in model.model_fields:
        return None
    annotation = model.model_fields[name].annotation
    found = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type) and issubclass(one, BaseModel)]
    return chosen.get(name) or next(iter(found), None)
