"""The keys of `model` for an encoder."""

from typing import Literal

from comera_dist.config.fields import Fraction, Layers, Positive, PositiveFloat, Rows, Section
from comera_dist.config.model_section import FormatName, ModelSection


class EncoderFormats(Section):
    """As DecoderFormats; `head` is the dense layer before the output (BERT's pooler or the masked-LM transform)."""

    attention: FormatName = "tensor"
    mlp: FormatName = "tensor"
    embedding: FormatName = "tensor"
    head: FormatName = "tensor"


class EncoderConfig(ModelSection):
    """A BERT-style encoder: learned positions, LayerNorm, GELU, biases."""

    kind: Literal["encoder"] = "encoder"
    head: Literal["masked_lm", "classification"] = "masked_lm"
    vocab_size: Rows | None = None  # None: that of the corpus
    classes: Positive | None = None  # of head classification; None: those of the corpus
    d_model: Positive = 256
    layers: Layers = 4
    heads: Positive = 4
    d_ff: Positive = 1024
    positions: Positive = 512  # longest sequence in tokens
    norm: Literal["post", "pre"] = "post"  # where a block normalises: after each sum, as BERT does, or before each half
    norm_eps: PositiveFloat = 1e-12
    dropout: Fraction = 0.1
    format: EncoderFormats = EncoderFormats()
