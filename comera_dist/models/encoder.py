"""A BERT-style encoder with a classification head, whose weight matrices are dense or tensor trains.

Shapes: B batch, S sequence, D width, F feed-forward width, H heads, E head width, C classes. Module names are those of
BERT's published checkpoints, so that a densified model can be read by the usual tools.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comera_dist.errors import ConfigError
from comera_dist.models.encoder_plan import EncoderShape
from comera_dist.models.layers import build_embedding, build_linear
from comera_dist.models.plan import LayerPlan, Plan
from comera_dist.tensor.merged_together import merged_together
from comera_dist.tensor.shared_input import shared_input

PADDING = 0  # the token id of BERT's [PAD]
STD = 0.02  # BERT's initializer_range, for every matrix

Layers = dict[str, nn.Module]


class Embeddings(nn.Module):
    """Sum of word, learned position and token type, normalised."""

    def __init__(self, shape: EncoderShape, layers: Layers):
        super().__init__()
        self.word_embeddings, self.position_embeddings = layers["word_embeddings"], layers["position_embeddings"]
        self.token_type_embeddings = layers["token_type_embeddings"]
        self.LayerNorm = nn.LayerNorm(shape.d_model, eps=shape.norm_eps)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, tokens_BS: Tensor, token_types_BS: Tensor | None) -> Tensor:
        positions_S = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)
        if token_types_BS is None:
            token_types_BS = tokens_BS.new_zeros(1, 1)
        x_BSD = self.word_embeddings(tokens_BS) + self.token_type_embeddings(token_types_BS)
        return self.dropout(self.LayerNorm(x_BSD + self.position_embeddings(positions_S)))


class SelfAttention(nn.Module):
    """Every token attends to all tokens of its sequence but padding."""

    def __init__(self, shape: EncoderShape, layers: Layers):
        super().__init__()
        self.head_width, self.dropout = shape.d_model // shape.heads, shape.dropout
        self.query, self.key, self.value = layers["query"], layers["key"], layers["value"]

    def forward(self, x_BSD: Tensor, keep_B11S: Tensor) -> Tensor:
        q_BHSE, k_BHSE, v_BHSE = map(self._heads, shared_input(x_BSD, (self.query, self.key, self.value)))
        dropout = self.dropout if self.training else 0.0
        y_BHSE = F.scaled_dot_product_attention(q_BHSE, k_BHSE, v_BHSE, attn_mask=keep_B11S, dropout_p=dropout)
        return y_BHSE.transpose(1, 2).flatten(2)

    def _heads(self, x_BSD: Tensor) -> Tensor:
        return x_BSD.unflatten(-1, (-1, self.head_width)).transpose(1, 2)


class AddNorm(nn.Module):
    """norm(x + dropout(dense(y))): how each half of a post-norm block ends; y is (B, S, D) or (B, S, F)."""

    def __init__(self, shape: EncoderShape, dense: nn.Module):
        super().__init__()
        self.dense, self.dropout = dense, nn.Dropout(shape.dropout)
        self.LayerNorm = nn.LayerNorm(shape.d_model, eps=shape.norm_eps)

    def forward(self, y: Tensor, x_BSD: Tensor) -> Tensor:
        return self.LayerNorm(x_BSD + self.dropout(self.dense(y)))


class Attention(nn.Module):
    """norm(x + attention(x))."""

    def __init__(self, shape: EncoderShape, layers: Layers):
        super().__init__()
        self.self = SelfAttention(shape, _below("self.", layers))
        self.output = AddNorm(shape, layers["output.dense"])

    def forward(self, x_BSD: Tensor, keep_B11S: Tensor) -> Tensor:
        return self.output(self.self(x_BSD, keep_B11S), x_BSD)


class Intermediate(nn.Module):
    """First half of the feed-forward layer: gelu(dense(x))."""

    def __init__(self, dense: nn.Module):
        super().__init__()
        self.dense = dense

    def forward(self, x_BSD: Tensor) -> Tensor:
        return F.gelu(self.dense(x_BSD))


class Block(nn.Module):
    """Post-norm transformer block."""

    def __init__(self, shape: EncoderShape, layers: Layers):
        super().__init__()
        self.attention = Attention(shape, _below("attention.", layers))
        self.intermediate = Intermediate(layers["intermediate.dense"])
        self.output = AddNorm(shape, layers["output.dense"])

    def forward(self, x_BSD: Tensor, keep_B11S: Tensor) -> Tensor:
        x_BSD = self.attention(x_BSD, keep_B11S)
        return self.output(self.intermediate(x_BSD), x_BSD)


class Blocks(nn.Module):
    """All blocks in turn."""

    def __init__(self, shape: EncoderShape, layers: Layers):
        super().__init__()
        self.layer = nn.ModuleList(Block(shape, _below(f"{index}.", layers)) for index in range(shape.layers))

    def forward(self, x_BSD: Tensor, keep_B11S: Tensor) -> Tensor:
        for block in self.layer:
            x_BSD = block(x_BSD, keep_B11S)
        return x_BSD


class Pooler(nn.Module):
    """What the classifier reads: tanh(dense(first token))."""

    def __init__(self, dense: nn.Module):
        super().__init__()
        self.dense = dense

    def forward(self, x_BSD: Tensor) -> Tensor:
        return self.dense(x_BSD[:, 0]).tanh()


class Trunk(nn.Module):
    """Tokens in, one vector (B, D) a sequence out."""

    def __init__(self, shape: EncoderShape, layers: Layers):
        super().__init__()
        self.positions = shape.positions
        self.embeddings = Embeddings(shape, _below("embeddings.", layers))
        self.encoder = Blocks(shape, _below("encoder.layer.", layers))
        self.pooler = Pooler(layers["pooler.dense"])

    def forward(self, tokens_BS: Tensor, token_types_BS: Tensor | None) -> Tensor:
        if tokens_BS.shape[1] > self.positions:
            raise ConfigError(
                f"a sequence of {tokens_BS.shape[1]} tokens was found, but the model has {self.positions} positions; "
                "cut the sequences, or build the model with more positions"
            )
        x_BSD = self.embeddings(tokens_BS, token_types_BS)
        return self.pooler(self.encoder(x_BSD, _keep(tokens_BS)))


class EncoderClassifier(nn.Module):
    """Classifies sequences of tokens, in which id 0 is padding.

    `plan` says how each matrix is stored (see `plan_encoder`); weights are drawn from `generator` in a fixed order, or
    left for the caller to load where it is None.
    """

    def __init__(self, shape: EncoderShape, plan: Plan, generator: torch.Generator | None):
        super().__init__()
        self.plan = plan
        layers = {name: _build(layer, generator) for name, layer in plan.items()}
        self.bert = Trunk(shape, _below("bert.", layers))
        self.dropout = nn.Dropout(shape.dropout)
        self.classifier = layers["classifier"]

    def forward(
        self, tokens_BS: Tensor, labels_B: Tensor | None = None, token_types_BS: Tensor | None = None
    ) -> Tensor:
        """Logits (B, C); or, with labels, the summed cross-entropy in nats (a label of -100 counts nothing).

        Without token types all are 0. Raises ConfigError for a sequence longer than the model's positions.
        """
        with merged_together(self, tokens_BS.numel()):
            logits_BC = self.classifier(self.dropout(self.bert(tokens_BS, token_types_BS)))
        if labels_B is None:
            return logits_BC
        return F.cross_entropy(logits_BC.float(), labels_B, ignore_index=-100, reduction="sum")


def _keep(tokens_BS: Tensor) -> Tensor:
    """Mask (B, 1, 1, S) of the keys that are attended to.

    It is made without asking whether there is any padding: on a GPU the answer would stop the queue of work.
    """
    keep_BS = tokens_BS != PADDING
    # Attention over no key at all is undefined: a sequence of nothing but padding, as fills up a batch, sees its start.
    keep_BS[:, 0] = True
    return keep_BS[:, None, None]


def _below(prefix: str, layers: Layers) -> Layers:
    """The layers whose names start with `prefix`, named without it."""
    return {name.removeprefix(prefix): layer for name, layer in layers.items() if name.startswith(prefix)}


def _build(layer: LayerPlan, generator: torch.Generator | None) -> nn.Module:
    if layer.is_embedding:
        return build_embedding(layer, STD, generator)
    return build_linear(layer, STD, generator, bias=True)
