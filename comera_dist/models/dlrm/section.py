"""The keys of `model` for a DLRM."""

from typing import Annotated, Literal

from pydantic import Field

from comera_dist.config.fields import MOST_LAYERS, NonNegative, Positive, Rows, Section, Widths
from comera_dist.config.model_section import FormatName, ModelSection


class DLRMFormats(Section):
    """Format of each kind of layer. One word, e.g. `model.format=dense`, sets all; `rest` sets those not listed."""

    mlp: FormatName = "dense"
    """Format of the layers of both MLPs."""
    embedding: FormatName = "tensor"
    """Format of the embedding tables."""


class DLRMConfig(ModelSection):
    """A deep-learning recommendation model (Naumov et al. 2019, arXiv 1906.00091): dot products as interaction."""

    kind: Literal["dlrm"] = "dlrm"
    """Kind of model: a deep-learning recommendation model."""
    embedding_dim: Positive = 16
    """Width of the embedding vectors."""
    # The default sizes are those of the authors' benchmark on Criteo's Kaggle data (bench/dlrm_s_criteo_kaggle.sh).
    bottom: Widths = (512, 256, 64)
    """Hidden widths of the MLP for dense features; it ends with `model.embedding_dim` outputs."""
    top: Widths = (512, 256)
    """Hidden widths of the MLP for the prediction; it ends with one logit."""
    dense_features: NonNegative | None = None
    """Number of numeric (dense) features; null takes that of the data."""
    table_rows: Annotated[tuple[Rows, ...], Field(max_length=MOST_LAYERS)] | None = None
    """Rows of each embedding table; null takes those of the data."""
    format: DLRMFormats = DLRMFormats()
