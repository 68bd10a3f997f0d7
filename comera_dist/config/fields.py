"""The kinds of values that keys of the configuration take: numbers within bounds, paths, and sections of keys.

Every number has a largest value, so that a slip of the finger is one sentence and no endless plan. A number may be
written as text, because YAML 1.1 reads 1e-3 as text; true and false are no numbers, because YAML 1.1 reads yes, no, on
and off as those.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from comera_dist.config.registry import Registry

MOST = 10**9  # of whatever is counted one by one: the product of two such numbers fits an int64
LARGEST_TOTAL = 10**18  # tokens of a run, parameters of a model: fits an int64
LARGEST_SEED = 2**32 - 1  # PyTorch's CPU generator forgets higher bits
MOST_ROWS = 2**31 - 1  # of a table: prepared clicks number them with 32 bits
# Every layer is planned by itself: so many take a second. DeepNet (Wang et al. 2022, arXiv 2203.00555) has 1,000.
MOST_LAYERS = 4096
# Of one side or table. All 2^11 ways to cut a table are compared, which with the layers' orders takes 5 seconds.
MOST_CORES = 12
MOST_RULES = 256  # every one is compared with every layer's name
# fp32 holds 10^-38 to 10^38: the product of three such numbers (learning rate, its scale, a schedule's) is still one.
LARGEST_NUMBER, SMALLEST_NUMBER = 1e12, 1e-37
LONGEST_NAME = 200  # bytes; file systems take 255, and names of temporary files are longer than the run's


class Section(BaseModel):
    """A block of keys: unknown keys are errors, values cannot be changed after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


def _as_number(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError(
            "truth_value", "expected a number (YAML reads yes and on as true, no and off as false)"
        )
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _not_next_to_zero(value: float) -> float:
    if value < SMALLEST_NUMBER:
        raise PydanticCustomError("next_to_zero", f"a smaller number than {SMALLEST_NUMBER:g} is 0 in fp32")
    return value


def name_in(registry: Registry) -> AfterValidator:
    """The name of a thing that `registry` knows."""

    def known(name: str) -> str:
        if name not in registry.names():
            raise PydanticCustomError("unknown_name", "expected one of {names}", {"names": ", ".join(registry.names())})
        return name

    return AfterValidator(known)


def _on_disk(path: Path) -> Path:
    if "\0" in str(path):
        raise PydanticCustomError("null_byte", "a path holds no null byte")
    return path


Number = BeforeValidator(_as_number)
Positive = Annotated[int, Number, Field(gt=0, le=MOST)]
NonNegative = Annotated[int, Number, Field(ge=0, le=MOST)]
Total = Annotated[int, Number, Field(gt=0, le=LARGEST_TOTAL)]
Seed = Annotated[int, Number, Field(ge=0, le=LARGEST_SEED)]
Layers = Annotated[int, Number, Field(gt=0, le=MOST_LAYERS)]
Order = Annotated[int, Number, Field(gt=0, le=MOST_CORES)]
Rows = Annotated[int, Number, Field(gt=0, le=MOST_ROWS)]
Fraction = Annotated[float, Number, Field(ge=0.0, le=1.0)]
PositiveFloat = Annotated[float, Number, Field(gt=0.0, le=LARGEST_NUMBER), AfterValidator(_not_next_to_zero)]
NonNegativeFloat = Annotated[float, Number, Field(ge=0.0, le=LARGEST_NUMBER)]
Modes = Annotated[tuple[Positive, ...], Field(min_length=1, max_length=MOST_CORES)]
Widths = Annotated[tuple[Positive, ...], Field(max_length=MOST_LAYERS)]
Patterns = Annotated[tuple[str, ...], Field(max_length=MOST_RULES)]  # in the style of a shell
Folder = Annotated[Path, AfterValidator(_on_disk)]
