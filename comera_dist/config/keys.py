"""Every key of the configuration with type, default and meaning, as `comera-config --keys` and the docs show them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from comera_dist.config.tree import Config

Schema = dict[str, Any]  # a part of the JSON schema that pydantic makes of Config


@dataclass(frozen=True)
class Key:
    """One key: its name as an override writes it, and one sentence about it."""

    name: str
    type: str
    default: str
    sentence: str


@dataclass(frozen=True)
class KeySection:
    """The keys of one section; `model` has one section for each of its kinds."""

    title: str
    text: str
    keys: tuple[Key, ...]


def key_sections() -> list[KeySection]:
    """All sections, in the order of a configuration file."""
    schema = Config.model_json_schema()
    return [section for section in _sections(schema, schema["$defs"], "", "") if section.keys]


def _sections(schema: Schema, definitions: Schema, prefix: str, kind: str) -> Iterator[KeySection]:
    """The section that `schema` describes, and the sections inside it."""
    inner = {name: list(_inner(part, definitions)) for name, part in schema["properties"].items()}
    keys = tuple(_key(prefix + name, part) for name, part in schema["properties"].items() if not inner[name])
    yield KeySection(prefix.rstrip(".") + kind, schema["description"], keys)
    for name, sections in inner.items():
        rule = "[]." if "items" in schema["properties"][name] else "."
        for section in sections:
            own_kind = f", kind {section['properties']['kind']['const']}" if len(sections) > 1 else kind
            yield from _sections(section, definitions, prefix + name + rule, own_kind)


def _inner(part: Schema, definitions: Schema) -> Iterator[Schema]:
    """The sections that a key can hold: none for a plain value, several where the kind of a model decides."""
    for one in (part, part.get("items", {}), *part.get("anyOf", ()), *part.get("oneOf", ())):
        if "$ref" in one:
            yield definitions[one["$ref"].rpartition("/")[2]]


def _key(name: str, part: Schema) -> Key:
    return Key(name, _type(part), _default(part), part.get("description", "").replace("\n", " "))


def _default(part: Schema) -> str:
    if "default" not in part:
        return "must be given"
    return json.dumps(part["default"]).strip('"')  # as YAML writes it: true, null, [0.9, 0.95]


def _type(part: Schema) -> str:
    """In a few words: `integer or null`, `cosine | wsd | linear | constant`, `list of text`."""
    if "anyOf" in part:
        return " or ".join(map(_type, part["anyOf"]))
    if "const" in part or "enum" in part:
        return " | ".join(map(str, part.get("enum", [part.get("const")])))
    if part["type"] == "array":
        return "list of " + _type(part["items"] if "items" in part else part["prefixItems"][0])
    return part.get("format", "text") if part["type"] == "string" else str(part["type"])
