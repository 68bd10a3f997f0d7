"""Every key of the configuration with type, default and meaning, as `comera-config --keys` and the docs show them."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from comera_dist.config.registry import FORMATS, KINDS, POLICIES
from comera_dist.config.tensor_section import WITHOUT_KEYS
from comera_dist.config.tree import Config

Schema = dict[str, Any]  # a part of the JSON schema that pydantic makes of Config


class Key(NamedTuple):
    """One key: its name as an override writes it, and one sentence about it."""

    name: str
    type: str
    default: str
    sentence: str


class KeySection(NamedTuple):
    """The keys of one section; each kind of model has a section `model` of its own."""

    title: str
    text: str
    keys: tuple[Key, ...]


def key_sections() -> list[KeySection]:
    """All sections, in the order of a configuration file."""
    found: list[KeySection] = []
    for prefix, kind, section in _roots():
        schema = section.model_json_schema()
        found += _sections(schema, schema.get("$defs", {}), prefix, kind)
    return [section for section in found if section.keys]


def _roots() -> Iterator[tuple[str, str, Any]]:
    """Prefix of the keys, words about the kind, and class of each section that is not inside another section."""
    for name, field in Config.model_fields.items():
        if name == "model":
            yield from (("model.", f", kind {kind}", KINDS[kind].section) for kind in KINDS.names())
        else:
            yield f"{name}.", "", field.annotation
        if name == "ranks":
            yield from (("ranks.policy.", f", kind {kind}", POLICIES[kind]) for kind in POLICIES.names())
        if name == "tensor":
            others = (format for format in FORMATS.names() if format not in WITHOUT_KEYS)
            yield from ((f"tensor.{format}.", "", FORMATS[format].options) for format in others)


def _sections(schema: Schema, definitions: Schema, prefix: str, kind: str) -> Iterator[KeySection]:
    """The section that `schema` describes, and the sections inside it."""
    properties, required = schema.get("properties", {}), schema.get("required", ())
    inner = {name: _inner(part, definitions) for name, part in properties.items()}
    keys = (_key(prefix + name, part, name in required) for name, part in properties.items() if inner[name] is None)
    yield KeySection(prefix.rstrip(".") + kind, schema["description"], tuple(keys))
    for name, section in inner.items():
        if section is not None:
            rule = "[]." if "items" in properties[name] else "."
            yield from _sections(section, definitions, prefix + name + rule, kind)


def _inner(part: Schema, definitions: Schema) -> Schema | None:
    """The section that a key holds, if it holds one: by itself, in a list, or beside null."""
    for one in (part, part.get("items", {}), *part.get("anyOf", ())):
        section: Schema = definitions[one["$ref"].rpartition("/")[2]] if "$ref" in one else one
        if "properties" in section:
            return section
    return None


def _key(name: str, part: Schema, is_required: bool) -> Key:
    # As YAML writes it: true, null, [0.9, 0.95]. A default that a function makes is an empty tree.
    default = "must be given" if is_required else json.dumps(part.get("default", {})).strip('"')
    return Key(name, _type(part), default, part.get("description", "").replace("\n", " "))


def _type(part: Schema) -> str:
    """In a few words: `integer or null`, `cosine | wsd | linear | constant`, `list of text`."""
    if "anyOf" in part:
        return " or ".join(map(_type, part["anyOf"]))
    if "const" in part or "enum" in part:
        return " | ".join(map(str, part.get("enum", [part.get("const")])))
    if part["type"] == "array":
        return "list of " + _type(part["items"] if "items" in part else part["prefixItems"][0])
    return part.get("format", "text") if part["type"] == "string" else str(part["type"])
