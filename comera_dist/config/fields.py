"""The kinds of values that keys of the configuration take: numbers within bounds, names, paths, and sections of keys.

Every number has a largest value, so that a typing error leads to one sentence instead of an endless plan. A number may
be written as text, because YAML 1.1 reads 1e-3 as text. Truth values are not numbers, because YAML 1.1 reads yes, no,
on and off as truth values.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.annotated_handlers import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_after_validator_function

from comera_dist.config.registry import Registry

MOST = 10**9  # of things that are counted one by one: the product of two such numbers fits an int64
LARGEST_TOTAL = 10**18  # tokens of a run, parameters of a model: fits an int64
LARGEST_SEED = 2**32 - 1  # PyTorch's CPU generator forgets higher bits
MOST_ROWS = 2**31 - 1  # of a table: prepared clicks number them with 32 bits
# Planning this many layers takes a second (measured). DeepNet (Wang et al. 2022, arXiv 2203.00555) has 1,000.
MOST_LAYERS = 4096
# Of one side or table. All 2^11 ways to cut a table are compared; with the layers' orders this takes 5 s (measured).
MOST_CORES = 12
MOST_RULES = 256  # chosen: every rule is compared with every layer's name
# fp32 holds 10^-38 to 10^38, so the product of three such numbers (learning rate, its scale, a schedule's) fits too.
LARGEST_NUMBER, SMALLEST_NUMBER = 1e12, 1e-37
_STEP_RANGE = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?")
LONGEST_NAME = 200  # bytes; file systems take 255, and names of temporary files are longer than the run's


class Section(BaseModel):
    """A block of keys. Unknown keys are errors, and values cannot be changed after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


@dataclass(frozen=True)
class NameIn:
    """Annotation of a key whose value is the name of a thing in `registry`."""

    registry: Registry[Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._known, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "enum": self.registry.names()}

    def _known(self, name: str) -> str:
        names = self.registry.names()
        if name not in names:
            raise PydanticCustomError("unknown_name", "expected one of {names}", {"names": ", ".join(names)})
        return name


def _as_number(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError(
            "truth_value", "expected a number (YAML reads yes and on as true, no and off as false)"
        )
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return value


def _not_next_to_zero(value: float) -> float:
    if value < SMALLEST_NUMBER:
        raise PydanticCustomError("next_to_zero", f"a smaller number than {SMALLEST_NUMBER:g} is 0 in fp32")
    return value


def _as_step_range(value: Any) -> Any:
    """The text of a range of steps. YAML reads a single number as an integer."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    found = _STEP_RANGE.fullmatch(text) if isinstance(text, str) else None
    if found is None or not 1 <= int(found[1]) <= int(found[2] or found[1]) <= MOST:
        raise PydanticCustomError("step_range", "expected a step or a range of steps from 1 on, such as 10-12")
    return text


def _on_disk(path: Path) -> Path:
    if "\0" in str(path):
        raise PydanticCustomError("null_byte", "a path holds no null byte")
    try:
        return path.expanduser()  # shells leave the ~ of section.key=~/folder, and so does YAML
    except RuntimeError:
        message = "expected a path below the home folder of a user of this machine; write it without ~"
        raise PydanticCustomError("no_home", message) from None


Number = BeforeValidator(_as_number)
Positive = Annotated[int, Number, Field(gt=0, le=MOST)]
NonNegative = Annotated[int, Number, Field(ge=0, le=MOST)]
Total = Annotated[int, Number, Field(gt=0, le=LARGEST_TOTAL)]
Seed = Annotated[int, Number, Field(ge=0, le=LARGEST_SEED)]
Layers = Annotated[int, Number, Field(gt=0, le=MOST_LAYERS)]
Order = Annotated[int, Number, Field(gt=0, le=MOST_CORES)]
Rows = Annotated[int, Number, Field(gt=0, le=MOST_ROWS)]
Fraction = Annotated[float, Number, Field(ge=0.0, le=1.0)]
Share = Annotated[float, Number, Field(gt=0.0, le=1.0), AfterValidator(_not_next_to_zero)]
PositiveFloat = Annotated[float, Number, Field(gt=0.0, le=LARGEST_NUMBER), AfterValidator(_not_next_to_zero)]
NonNegativeFloat = Annotated[float, Number, Field(ge=0.0, le=LARGEST_NUMBER)]
Modes = Annotated[tuple[Positive, ...], Field(min_length=1, max_length=MOST_CORES)]
Widths = Annotated[tuple[Positive, ...], Field(max_length=MOST_LAYERS)]
Patterns = Annotated[tuple[str, ...], Field(max_length=MOST_RULES)]  # shell-style
StepRange = Annotated[str, BeforeValidator(_as_step_range)]  # "10-12", or "10" for a single step
Folder = Annotated[Path, AfterValidator(_on_disk)]
