"""The keys of `model` for an encoder."""

from typing import Literal

from comera_dist.config.fields import Fraction, Layers, Positive, PositiveFloat, Rows, Section
from comera_dist.config.model_section import FormatName, ModelSection


class EncoderFormats(Section):
    """Format of each kind of layer. One word, e.g. `model.format=dense`, sets all; `rest` sets those not listed."""

    attention: FormatName = "tensor"
    """Format of the query, key, value and output projections."""
    mlp: FormatName = "tensor"
    """Format of the layers of each block's MLP."""
    embedding: FormatName = "tensor"
    """Format of the word embedding."""
    head: FormatName = "tensor"
    """Format of the dense layer before the output: BERT's pooler, or the masked-LM transform."""


class EncoderConfig(ModelSection):
    """A BERT-style encoder: learned positions, LayerNorm, GELU, biases.

    The default sizes are chosen for small models, with BERT's ratio of `d_ff` to `d_model`.
    """

    kind: Literal["encoder"] = "encoder"
    """Kind of model: a BERT-style encoder."""
    head: Literal["masked_lm", "classification"] = "masked_lm"
    """Task of the encoder: it predicts hidden words, or the class of a pair."""
    vocab_size: Rows | None = None
    """Rows of the word embedding; null takes the size of the data's vocabulary."""
    classes: Positive | None = None
    """Number of classes for head `classification`; null takes that of the data."""
    d_model: Positive = 256
    """Width of the hidden states."""
    layers: Layers = 4
    """Number of blocks."""
    heads: Positive = 4
    """Attention heads of a block."""
    d_ff: Positive = 1024
    """Width inside the MLP."""
    positions: Positive = 512
    """Length of the longest sequence in tokens: rows of the position embedding (BERT: 512)."""
    norm: Literal["post", "pre"] = "post"
    """Place of a block's LayerNorms: `post` after each sum, as in BERT, or `pre` before attention and MLP."""
    norm_eps: PositiveFloat = 1e-12
    """Number that LayerNorm adds to the variance (BERT: 1e-12)."""
    dropout: Fraction = 0.1
    """Share of activations that dropout sets to zero in training (BERT: 0.1)."""
    output_bias: bool = False
    """Whether the logits of head `masked_lm` have a bias for each token, as BERT's have."""
    format: EncoderFormats = EncoderFormats()
