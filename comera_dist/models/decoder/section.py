"""The keys of `model` for a decoder."""

from typing import Literal

from comera_dist.config.fields import Layers, Positive, PositiveFloat, Section
from comera_dist.config.model_section import FormatName, ModelSection


class DecoderFormats(Section):
    """How each kind of layer stores its weight.

    The string `dense` or `tensor` in its place sets all of them, `rest` those that are not named.
    """

    attention: FormatName = "tensor"
    mlp: FormatName = "tensor"
    embedding: FormatName = "tensor"
    head: FormatName = "tensor"


class DecoderConfig(ModelSection):
    """A LLaMA-compatible decoder: RMSNorm, RoPE, SwiGLU, grouped-query attention, no biases."""

    kind: Literal["decoder"] = "decoder"
    d_model: Positive = 256
    layers: Layers = 4
    heads: Positive = 4
    kv_heads: Positive | None = None  # None: as many as heads
    d_ff: Positive = 704
    rope_theta: PositiveFloat = 10000.0
    norm_eps: PositiveFloat = 1e-5
    tie_embeddings: bool = False
    format: DecoderFormats = DecoderFormats()
