"""The keys of `tensor`: shapes of tensor trains, options of other formats, exceptions by layer, and the budget."""

from functools import cache
from typing import Annotated, Any

from pydantic import Field, create_model

from comera_dist.config.fields import MOST_RULES, Modes, NonNegative, Order, Positive, PositiveFloat, Section, Total
from comera_dist.config.model_section import FormatName
from comera_dist.config.registry import FORMATS

WITHOUT_KEYS = ("dense", "tensor")  # formats without a section of keys: those of tensor trains stand in `tensor` itself


class Rule(Section):
    """Exceptions for the layers whose name matches a shell-style pattern."""

    match: str
    """Shell-style pattern of layer names, such as `*.o_proj`; the first rule that matches a layer applies to it."""
    format: FormatName | None = None
    """Format of the matching layers; null takes the format that `model.format` gives them."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Other options of the layers' format, by the names of the keys in `tensor.<format>`."""


class LayerRule(Rule):
    """Exceptions for the linear layers whose name matches a shell-style pattern."""

    order: Order | None = None
    """Cores per side; null takes `tensor.order`."""
    rank: Positive | None = None
    """Rank of the middle bond; null takes `tensor.rank`."""
    outer_rank: Positive | None = None
    """Largest rank of all other bonds; null takes `tensor.outer_rank`."""
    in_modes: Modes | None = None
    """Factors of the in-features, one for each core; their product may be larger, and null lets the planner choose."""
    out_modes: Modes | None = None
    """Factors of the out-features, one for each core; their product may be larger, and null lets the planner choose."""


class EmbeddingRule(Rule):
    """Exceptions for the embedding tables whose name matches a shell-style pattern."""

    order: Order | None = None
    """Cores of the tensor-train matrix; null takes `tensor.embedding_order`."""
    rank: Positive | None = None
    """Largest rank of all bonds; null takes `tensor.embedding_rank`."""
    vocab_modes: Modes | None = None
    """Factors of the row count, one for each core; their product may be larger, and null lets the planner choose."""
    width_modes: Modes | None = None
    """Factors of the width, one for each core; null lets the planner choose."""


class Budget(Section):
    """Largest costs of the whole model: matrices of the format `auto` get the largest share of their dense numbers that
    meets all of them.
    """

    parameters: Total | None = None
    """Stored numbers."""
    flops_per_token: PositiveFloat | None = None
    """Training FLOPs of a token (a DLRM: of a row), merging of factors included."""
    state_bytes: Total | None = None
    """Bytes of weights, gradients and optimizer state on the fullest process, without activations."""


class Tensor(Section):
    """Shapes of the tensor trains, and options of other formats under their names, e.g. `tensor.block_train.rank`.

    The defaults are chosen for small models.
    """

    order: Order = 3
    """Cores per side of a linear layer's tensor train; 1 is plain low rank."""
    rank: Positive = 32
    """Rank of the middle bond of a linear layer, which sets its FLOPs."""
    outer_rank: Positive | None = None
    """Largest rank of all other bonds of a linear layer, which sets its size; null allows as much as `tensor.rank`."""
    embedding_order: Order = 3
    """Cores of an embedding's tensor-train matrix."""
    embedding_rank: Positive = 32
    """Largest rank of all bonds of an embedding."""
    embedding_min_rows: NonNegative = 0
    """Number of rows below which an embedding table stays dense."""
    layers: Annotated[tuple[LayerRule, ...], Field(max_length=MOST_RULES)] = ()
    """Exceptions for single linear layers, as a list of rules."""
    embeddings: Annotated[tuple[EmbeddingRule, ...], Field(max_length=MOST_RULES)] = ()
    """Exceptions for single embedding tables, as a list of rules."""
    budget: Budget = Budget()
    """Largest costs of the whole model, for matrices of the format `auto`."""

    def options_of(self, format: str) -> Any:
        """The options of a format; its defaults if the configuration sets none."""
        return getattr(self, format) if format in type(self).model_fields else FORMATS[format].options()

    def with_options(self, format: str, options: Section) -> "Tensor":
        """The same section with other options of a format."""
        section: Tensor = tensor_section({**dict(self), format: options})
        return section


@cache
def _with_formats(names: tuple[str, ...]) -> type[Tensor]:
    """The section with the options of these formats. Others are not imported, because some import torch."""
    fields: Any = {name: (FORMATS[name].options, Field(default_factory=FORMATS[name].options)) for name in names}
    return create_model("Tensor", __base__=Tensor, **fields)


def tensor_section(value: Any) -> Any:
    """The section `tensor` of a tree, with the options of the formats that it names."""
    if not isinstance(value, dict):
        return value
    named = tuple(sorted(name for name in value if name in FORMATS.names() and name not in Tensor.model_fields))
    return _with_formats(named).model_validate(value)
