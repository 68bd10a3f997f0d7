"""Reads YAML as a tree of dicts, lists and values. Refuses text that is ambiguous or unreasonably large."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import yaml

from comera_dist.config.model_section import REST
from comera_dist.config.secrets import redacted

Tree = dict[str, Any]

# Chosen: far more than any configuration holds, and little enough to be read in a few seconds.
MOST_CHARACTERS = 2**17
MOST_VALUES = 2**14  # a value that an alias repeats counts each time
DEEPEST = 32  # levels of nesting; chosen: a configuration has four
TEXTS = 256  # kept with their values: the planner reads one file and few overrides a thousand times
NOT_DECIMAL = "[-+]?0[0-9_]+$|.*:"  # how numbers to other bases look
LONGEST_VALUE = 80  # characters of a value that a sentence repeats; chosen: they fit on a line of a terminal


def _pattern(tag: str, pattern: re.Pattern[str]) -> re.Pattern[str]:
    """The pattern by which YAML knows values of `tag`, without octal numbers and those to the base of 60."""
    is_number = tag.rpartition(":")[2] in ("int", "float")
    return re.compile(rf"(?!{NOT_DECIMAL})(?:{pattern.pattern})", re.VERBOSE) if is_number else pattern


class _Loader(yaml.SafeLoader):
    """Takes a date for text: no key holds a date, and a run may be named after a day.

    So it takes 010, which YAML 1.1 reads as 8, and 1:30, which it reads as 90. A key that holds a number then reads ten
    of the one, as everybody means it, and refuses the other.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012  (its base class declares it so)
        first: [(tag, _pattern(tag, pattern)) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class NotATree(Exception):
    """What is wrong with the text, as the end of the sentence "X is not a configuration: …"."""


def read_tree(text: str) -> Any:
    """The value of a YAML text. An alias becomes a copy, so changing one place changes no other. Raises NotATree."""
    return _unshared(_value(text))


@lru_cache(TEXTS)
def _value(text: str) -> Any:
    if len(text) > MOST_CHARACTERS:
        raise NotATree(f"it has more than {MOST_CHARACTERS:,} characters; keep data out of it")
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        for number, _ in enumerate(_checked(root, 0)):
            if number == MOST_VALUES:
                raise NotATree(f"it has more than {MOST_VALUES:,} values, repeated ones included; write fewer of them")
        return loader.construct_document(root)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise NotATree(f"it is not valid YAML{where}; mend its indentation or quoting") from None
    except RecursionError:
        raise NotATree(f"it is nested more than {DEEPEST} deep; write it flat") from None
    # Python's own errors, e.g. for too many digits, or text with a tag for numbers.
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError) as error:
        raise NotATree(f"it holds a value that cannot be read ({type(error).__name__}: {error}); quote it") from None


def _checked(node: yaml.Node, depth: int) -> Iterator[yaml.Node]:
    """All nodes of the tree; an alias is followed each time that it occurs."""
    if depth > DEEPEST:
        line = node.start_mark.line + 1
        raise NotATree(f"at line {line} it is nested more than {DEEPEST} deep, or an alias holds itself; write it flat")
    yield node
    if isinstance(node, yaml.MappingNode):
        _check_keys(node)
    if isinstance(node, yaml.CollectionNode):
        for part in node.value:
            for child in part if isinstance(part, tuple) else (part,):
                yield from _checked(child, depth + 1)


def _check_keys(node: yaml.MappingNode) -> None:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        line = key.start_mark.line + 1
        if (key.tag, key.value) in lines:
            first = lines[key.tag, key.value]
            raise NotATree(f"it sets {key.value} twice, at lines {first} and {line}; remove one of them")
        lines[key.tag, key.value] = line


def _unshared(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unshared(part) for key, part in value.items()}
    return [_unshared(part) for part in value] if isinstance(value, list) else value


def section_at(tree: Tree, path: list[str]) -> Tree:
    """The section at `path`, which is added if the tree has none.

    A word in place of a section (model.format=dense) is kept for the keys that are not named.
    """
    for name in path:
        if not isinstance(tree.get(name), dict):
            tree[name] = {REST: tree[name]} if isinstance(tree.get(name), str) else {}
        tree = tree[name]
    return tree


def flat(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Values by "section.key"; empty sections are left out."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return values


def shown(value: Any) -> str:
    """A value of a tree as a sentence repeats it, without secrets."""
    try:
        text = redacted(repr(value))
    except (ValueError, RecursionError):  # an integer with more digits than Python prints, or endless nesting
        return f"a very large {type(value).__name__}"
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"
