"""Every key of the configuration with type, default and meaning, as `comera-config --keys` and the docs show them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from comera_dist.config.registry import KINDS
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
    sections: list[KeySection] = []
    for name, field in Config.model_fields.items():
        own: dict[str, Any] = {"": field.annotation}
        kinds = {f", kind {kind}": KINDS[kind] for kind in KINDS.names()}
        for title, section in (kinds if name == "model" else own).items():
            schema = section.model_json_schema()
            sections += _sections(schema, schema.get("$defs", {}), f"{name}.", title)
    return [section for section in sections if section.keys]


def _sections(schema: Schema, definitions: Schema, prefix: str, kind: str) -> Iterator[KeySection]:
    """The section that `schema` describes, and the sections inside it."""
    inner = {name: _inner(part, definitions) for name, part in schema["properties"].items()}
    keys = tuple(_key(prefix + name, part) for name, part in schema["properties"].items() if inner[name] is None)
    yield KeySection(prefix.rstrip(".") + kind, schema["description"], keys)
    for name, section in inner.items():
        if section is not None:
            rule = "[]." if "items" in schema["properties"][name] else "."
            yield from _sections(section, definitions, prefix + name + rule, kind)


def _inner(part: Schema, definitions: Schema) -> Schema | None:
    """The section that a key holds, if it holds one: by itself, in a list, or beside null."""
    for one in (part, part.get("items", {}), *part.get("anyOf", ())):
        if "$ref" in one:
            section: Schema = definitions[one["$ref"].rpartition("/")[2]]
            return section
    return None


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
