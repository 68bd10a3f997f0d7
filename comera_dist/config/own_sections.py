"""Sections that choose one of several things by name and hold a section of settings for each of these things."""

from functools import cache
from typing import Any, ClassVar, TypeVar

from pydantic import ConfigDict, Field, GetJsonSchemaHandler, create_model, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from comera_dist.config.fields import Section
from comera_dist.config.registry import Registry

Own = TypeVar("Own", bound=Section)


class ChoosingSection(Section):
    """Besides its keys, it has a section for each thing of `registry` whose `section` is not None, by the thing's name.

    A configuration holds all of these sections, whichever thing is chosen, just as it holds all other keys. The class
    of such a section lies with the thing, so that something added to the registry brings its own keys.
    """

    model_config = ConfigDict(extra="allow")  # the sections are extra fields; `_read_own` refuses other keys
    registry: ClassVar[Registry[Any]]

    @classmethod
    def own_sections(cls) -> dict[str, type[Section]]:
        """Classes of the sections by name."""
        sections = {name: cls.registry[name].section for name in cls.registry.names()}
        return {name: section for name, section in sections.items() if section is not None}

    def own(self, name: str, section: type[Own]) -> Own:
        """The section `name`, whose class is `section`."""
        found = getattr(self, name)
        assert isinstance(found, section)
        return found

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        own = {name: handler(section.__pydantic_core_schema__) for name, section in cls.own_sections().items()}
        whole = handler.resolve_ref_schema(schema)
        whole["properties"] |= own
        whole["additionalProperties"] = False
        return schema

    @model_validator(mode="before")
    @classmethod
    def _read_own(cls, tree: Any) -> Any:
        if not isinstance(tree, dict):
            return tree
        own = _model_with(tuple(cls.own_sections().items()))
        common = {key: value for key, value in tree.items() if key in cls.model_fields}
        # Pydantic adds the place of this section to the places of the mistakes that `own` finds.
        return common | dict(own.model_validate({key: tree[key] for key in tree.keys() - common.keys()}))


@cache
def _model_with(sections: tuple[tuple[str, type[Section]], ...]) -> type[Section]:
    """A model of these sections. To make one takes as long as to validate a whole configuration."""
    fields: dict[str, Any] = {name: (section, Field(default_factory=section)) for name, section in sections}
    model: type[Section] = create_model("Own", __base__=Section, **fields)
    return model
