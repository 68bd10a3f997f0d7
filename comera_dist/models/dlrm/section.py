"""The keys of `model` for a DLRM."""

from typing import Annotated, Literal

from pydantic import Field

from comera_dist.config.fields import MOST_LAYERS, NonNegative, Positive, Rows, Section, Widths
from comera_dist.config.model_section import FormatName, ModelSection


class DLRMFormats(Section):
    """As DecoderFormats."""

    mlp: FormatName = "dense"
    embedding: FormatName = "tensor"


class DLRMConfig(ModelSection):
    """A deep-learning recommendation model (Naumov et al. 2019, arXiv 1906.00091): dot products as interaction.

    `bottom` and `top` are the hidden widths of the two MLPs; the bottom one ends with `embedding_dim` outputs, the top
    one with one logit.
    """

    kind: Literal["dlrm"] = "dlrm"
    embedding_dim: Positive = 16
    bottom: Widths = (512, 256, 64)
    top: Widths = (512, 256)
    dense_features: NonNegative | None = None  # None: those of the corpus
    table_rows: Annotated[tuple[Rows, ...], Field(max_length=MOST_LAYERS)] | None = None  # None: those of the corpus
    format: DLRMFormats = DLRMFormats()
