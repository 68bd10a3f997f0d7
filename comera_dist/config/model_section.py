"""What the sections `model` of all kinds of model have in common."""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import field_validator

from comera_dist.config.fields import NameIn, Section
from comera_dist.config.registry import FORMATS

REST = "rest"  # key of `model.format` that sets the format of every layer kind that is not listed

FormatName = Annotated[str, NameIn(FORMATS)]


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
        section = cls.model_fields["format"].annotation
        assert isinstance(section, type)
        assert issubclass(section, Section)
        return dict.fromkeys(section.model_fields, named[REST]) | {k: word for k, word in named.items() if k != REST}
