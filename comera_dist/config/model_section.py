"""What the sections `model` of all kinds of model have in common."""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, field_validator
from pydantic_core import PydanticCustomError

from comera_dist.config.fields import Section
from comera_dist.config.registry import FORMATS

REST = "rest"  # key of `model.format` that sets the format of every layer kind that is not listed


def _known_format(name: str) -> str:
    if name not in FORMATS.names():
        raise PydanticCustomError("unknown_format", "expected one of {names}", {"names": ", ".join(FORMATS.names())})
    return name


def _name_them(schema: dict[str, Any]) -> None:
    schema["enum"] = FORMATS.names()


FormatName = Annotated[str, AfterValidator(_known_format), Field(json_schema_extra=_name_them)]


class ModelSection(Section):
    """Keys of one kind of model. Its field `format` is a section that says how each kind of layer stores its weight."""

    kind: str

    if TYPE_CHECKING:  # A kind's own keys are checked when a configuration is read, not by mypy.

        def __getattr__(self, key: str) -> Any: ...

    @field_validator("format", mode="before", check_fields=False)
    @classmethod
    def _one_word_for_all(cls, value: Any) -> Any:
        named = {REST: value} if isinstance(value, str) else value
        if not isinstance(named, dict) or REST not in named:
            return value
        formats = cls.model_fields["format"].annotation.model_fields
        return dict.fromkeys(formats, named[REST]) | {key: word for key, word in named.items() if key != REST}
