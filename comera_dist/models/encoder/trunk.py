"""A BERT-style encoder without its head: from tokens to hidden states.

Shapes: B batch, S sequence, D width, F feed-forward width, H heads, E head width. Module names are those of BERT's
published checkpoints, and of Megatron-BERT's if norms come first.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from comera_dist.data.special_tokens import PADDING
from comera_dist.errors import ConfigError
from comera_dist.formats.shared_input import shared_input
from comera_dist.models.checkpointed_block import CheckpointedBlock
from comera_dist.models.encoder.section import EncoderConfig
from comera_dist.ops.dropout import Dropout, attention

STD = 0.02  # BERT's initializer_range, for every matrix

Layers = dict[str, nn.Module]


class Embeddings(nn.Module):
    """Sum of word, learned position and token type, normalised in a post-norm model: (B, S) → (B, S, D)."""

    def __init__(self, config: EncoderConfig, layers: Layers):
        super().__init__()
        self.word_embeddings, self.position_embeddings = layers["word_embeddings"], layers["position_embeddings"]
        self.token_type_embeddings = layers["token_type_embeddings"]
        self.LayerNorm, self.dropout = _norm(config, "post"), Dropout(config.dropout)

    def forward(self, tokens_BS: Tensor, token_types_BS: Tensor) -> Tensor:
        positions_S = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)
        x_BSD = self.word_embeddings(tokens_BS) + self.token_type_embeddings(token_types_BS)
        y_BSD: Tensor = self.dropout(self.LayerNorm(x_BSD + self.position_embeddings(positions_S)))
        return y_BSD


class SelfAttention(nn.Module):
    """Attention of every token to all tokens of its sequence except padding: (B, S, D) → (B, S, D)."""

    def __init__(self, config: EncoderConfig, layers: Layers):
        super().__init__()
        self.head_width, self.dropout = config.d_model // config.heads, config.dropout
        self.query, self.key, self.value = layers["query"], layers["key"], layers["value"]

    def forward(self, x_BSD: Tensor, keep_B11S: Tensor) -> Tensor:
        q_BHSE, k_BHSE, v_BHSE = map(self._heads, shared_input(x_BSD, (self.query, self.key, self.value)))
        dropout = self.dropout if self.training else 0.0
        y_BHSE = attention(q_BHSE, k_BHSE, v_BHSE, keep_B11S, dropout)
        return y_BHSE.transpose(1, 2).flatten(2)

    def _heads(self, x_BSD: Tensor) -> Tensor:
        return x_BSD.view(*x_BSD.shape[:2], -1, self.head_width).transpose(1, 2)


class Residual(nn.Module):
    """The end of each half of a block: x + dropout(dense(y)), normalised in a post-norm model.

    x is (B, S, D), y (B, S, D) or (B, S, F).
    """

    def __init__(self, config: EncoderConfig, dense: nn.Module):
        super().__init__()
        self.dense, self.dropout = dense, Dropout(config.dropout)
        self.LayerNorm = _norm(config, "post")

    def forward(self, y: Tensor, x_BSD: Tensor) -> Tensor:
        z_BSD: Tensor = self.LayerNorm(x_BSD + self.dropout(self.dense(y)))
        return z_BSD


class Attention(nn.Module):
    """First half of a block: x + attention(x), normalised before (pre-norm) or after (post-norm)."""

    def __init__(self, config: EncoderConfig, layers: Layers):
        super().__init__()
        self.ln = _norm(config, "pre")
        self.self = SelfAttention(config, below("self.", layers))
        self.output = Residual(config, layers["output.dense"])

    def forward(self, x_BSD: Tensor, keep_B11S: Tensor) -> Tensor:
        y_BSD: Tensor = self.output(self.self(self.ln(x_BSD), keep_B11S), x_BSD)
        return y_BSD


class Block(CheckpointedBlock):
    """Transformer block with GELU: (B, S, D) → (B, S, D)."""

    def __init__(self, config: EncoderConfig, layers: Layers):
        super().__init__()
        self.attention = Attention(config, below("attention.", layers))
        self.ln = _norm(config, "pre")
        self.intermediate = nn.Sequential(OrderedDict(dense=layers["intermediate.dense"], gelu=nn.GELU()))
        self.output = Residual(config, layers["output.dense"])

    def compute(self, x_BSD: Tensor, keep_B11S: Tensor) -> Tensor:
        x_BSD = self.attention(x_BSD, keep_B11S)
        y_BSD: Tensor = self.output(self.intermediate(self.ln(x_BSD)), x_BSD)
        return y_BSD


class Blocks(nn.Module):
    """All blocks in turn, and the last norm of a pre-norm model: (B, S, D) → (B, S, D)."""

    def __init__(self, config: EncoderConfig, layers: Layers):
        super().__init__()
        self.layer = nn.ModuleList(Block(config, below(f"{index}.", layers)) for index in range(config.layers))
        self.ln = _norm(config, "pre")

    def forward(self, x_BSD: Tensor, keep_B11S: Tensor) -> Tensor:
        for block in self.layer:
            x_BSD = block(x_BSD, keep_B11S)
        y_BSD: Tensor = self.ln(x_BSD)
        return y_BSD


class Trunk(nn.Module):
    """Tokens and token types (B, S) → hidden states (B, S, D). Raises ConfigError for too long a sequence."""

    def __init__(self, config: EncoderConfig, layers: Layers):
        super().__init__()
        self.positions = config.positions
        self.embeddings = Embeddings(config, below("embeddings.", layers))
        self.encoder = Blocks(config, below("encoder.layer.", layers))
        if "pooler.dense" in layers:  # BERT's checkpoints have it here; the classification head calls it
            self.pooler = nn.Sequential(OrderedDict(dense=layers["pooler.dense"], tanh=nn.Tanh()))

    def forward(self, tokens_BS: Tensor, token_types_BS: Tensor) -> Tensor:
        if tokens_BS.shape[1] > self.positions:
            raise ConfigError(
                f"a sequence of {tokens_BS.shape[1]} tokens was found, but the model has {self.positions} positions; "
                "cut the sequences, or build the model with more positions"
            )
        x_BSD: Tensor = self.encoder(self.embeddings(tokens_BS, token_types_BS), _keep(tokens_BS))
        return x_BSD


def _norm(config: EncoderConfig, place: str) -> nn.Module:
    """A LayerNorm if the model's norms are at `place` ("post" or "pre"), else the identity."""
    return nn.LayerNorm(config.d_model, eps=config.norm_eps) if config.norm == place else nn.Identity()


def _keep(tokens_BS: Tensor) -> Tensor:
    """Mask (B, 1, 1, S) of the keys that are attended to.

    It is made whether or not there is padding: asking would make the CPU wait for a GPU.
    """
    keep_BS = tokens_BS != PADDING
    # Attention without any key is undefined, so a row of padding alone, which fills up a batch, sees its first token.
    keep_BS[:, 0] = True
    return keep_BS[:, None, None]


def below(prefix: str, layers: Layers) -> Layers:
    """The layers whose names start with `prefix`, without this prefix."""
    return {name.removeprefix(prefix): layer for name, layer in layers.items() if name.startswith(prefix)}
