"""The keys of `model` for a decoder."""

from typing import Literal

from comera_dist.config.fields import Layers, Positive, PositiveFloat, Rows, Section
from comera_dist.config.model_section import FormatName, ModelSection


class DecoderFormats(Section):
    """Format of each kind of layer. One word, e.g. `model.format=dense`, sets all; `rest` sets those not listed."""

    attention: FormatName = "tensor"
    """Format of the query, key, value and output projections."""
    mlp: FormatName = "tensor"
    """Format of the layers of each block's MLP."""
    embedding: FormatName = "tensor"
    """Format of the token embedding, and of the table of `model.bigram_rows`."""
    head: FormatName = "tensor"
    """Format of the projection to the vocabulary."""


class DecoderConfig(ModelSection):
    """A LLaMA-compatible decoder: RMSNorm, RoPE, SwiGLU, grouped-query attention, no biases.

    The default sizes are those of the quickstart.
    """

    kind: Literal["decoder"] = "decoder"
    """Kind of model: a LLaMA-compatible decoder."""
    d_model: Positive = 256
    """Width of the hidden states."""
    layers: Layers = 4
    """Number of blocks."""
    heads: Positive = 4
    """Attention heads of a block."""
    kv_heads: Positive | None = None
    """Heads of keys and values in a block; null takes `model.heads`."""
    d_ff: Positive = 704
    """Width inside the MLP."""
    rope_theta: PositiveFloat = 10000.0
    """Base of the rotary position embedding's frequencies (LLaMA: 10000)."""
    norm_eps: PositiveFloat = 1e-5
    """Number that RMSNorm adds to the mean square (LLaMA 2: 1e-5)."""
    tie_embeddings: bool = False
    """Whether the projection to the vocabulary uses the table of the token embedding."""
    gated_attention: bool = False
    """Whether each token multiplies the result of every attention head by a gate, which starts at 1."""
    bigram_rows: Rows | None = None
    """Rows of a second embedding table, which pairs of a token and the one before it share by a hash; null has no such
    table."""
    format: DecoderFormats = DecoderFormats()
