"""A LLaMA-compatible decoder whose weight matrices are dense or tensor trains.

Shapes: B batch, S sequence, T = B·S tokens, D width, F feed-forward width, H heads, K key-value heads, E head width,
V vocabulary. Module names are those of LLaMA's published checkpoints, so that a densified model can be read by the
usual tools.
"""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comera_dist.formats.capabilities import embedding_table
from comera_dist.formats.plan import Plan
from comera_dist.formats.shared_input import shared_input
from comera_dist.formats.tensor_train.linear import merged_together
from comera_dist.models.decoder.kv_cache import BlockCache, KeyValueCache
from comera_dist.models.decoder.section import DecoderConfig
from comera_dist.ops.cross_entropy import linear_cross_entropy

VOCABULARY_STD = 0.02  # LLaMA's initializer_range: first logits near zero, first loss near ln V


class Attention(nn.Module):
    """Causal self-attention with rotary positions and grouped key-value heads."""

    def __init__(self, config: DecoderConfig, layers: dict[str, nn.Module]):
        super().__init__()
        self.head_width = config.d_model // config.heads
        self.q_proj, self.k_proj = layers["self_attn.q_proj"], layers["self_attn.k_proj"]
        self.v_proj, self.o_proj = layers["self_attn.v_proj"], layers["self_attn.o_proj"]

    def forward(self, x_BSD: Tensor, cos_SE: Tensor, sin_SE: Tensor, cache: BlockCache | None = None) -> Tensor:
        q_BHSE, k_BKSE, v_BKSE = map(self._heads, shared_input(x_BSD, (self.q_proj, self.k_proj, self.v_proj)))
        q_BHSE, k_BKSE = rotate(q_BHSE, cos_SE, sin_SE), rotate(k_BKSE, cos_SE, sin_SE)
        if cache is not None:
            k_BKSE, v_BKSE = cache.extend(k_BKSE, v_BKSE)
        grouped = q_BHSE.shape[1] != k_BKSE.shape[1]
        y_BHSE = F.scaled_dot_product_attention(
            # A single token sees all that is there; with a cache that is more than itself.
            q_BHSE,
            k_BKSE,
            v_BKSE.to(q_BHSE.dtype),
            is_causal=q_BHSE.shape[2] > 1,
            enable_gqa=grouped,
        )
        return self.o_proj(y_BHSE.transpose(1, 2).flatten(2))

    def _heads(self, x_BSD: Tensor) -> Tensor:
        return x_BSD.unflatten(-1, (-1, self.head_width)).transpose(1, 2)


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) · up(x))."""

    def __init__(self, layers: dict[str, nn.Module]):
        super().__init__()
        self.gate_proj, self.up_proj = layers["mlp.gate_proj"], layers["mlp.up_proj"]
        self.down_proj = layers["mlp.down_proj"]

    def forward(self, x_BSD: Tensor) -> Tensor:
        gate_BSF, up_BSF = shared_input(x_BSD, (self.gate_proj, self.up_proj))
        return self.down_proj(F.silu(gate_BSF) * up_BSF)


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, config: DecoderConfig, layers: dict[str, nn.Module]):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.self_attn = Attention(config, layers)
        self.post_attention_layernorm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.mlp = MLP(layers)

    def forward(self, x_BSD: Tensor, cos_SE: Tensor, sin_SE: Tensor, cache: BlockCache | None = None) -> Tensor:
        x_BSD = x_BSD + self.self_attn(self.input_layernorm(x_BSD), cos_SE, sin_SE, cache)
        return x_BSD + self.mlp(self.post_attention_layernorm(x_BSD))


class Trunk(nn.Module):
    """Embedding, blocks and the last norm: tokens in, hidden states out."""

    def __init__(self, config: DecoderConfig, plan: Plan, generator: torch.Generator | None):
        super().__init__()
        self.rope_theta, self.head_width = config.rope_theta, config.d_model // config.heads
        self.embed_tokens = plan["model.embed_tokens"].build(VOCABULARY_STD, generator)
        self.layers = nn.ModuleList(
            Block(config, _block_layers(plan, index, config.layers, generator)) for index in range(config.layers)
        )
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)

    def forward(self, tokens_BS: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        length, first = tokens_BS.shape[1], cache.length if cache else 0
        assert first == 0 or length == 1, "a filled cache takes one token at a time"
        cos_SE, sin_SE = rotary_tables(length, self.head_width, self.rope_theta, tokens_BS.device, first)
        x_BSD = self.embed_tokens(tokens_BS)
        for index, block in enumerate(self.layers):
            x_BSD = block(x_BSD, cos_SE, sin_SE, cache.blocks[index] if cache else None)
        return self.norm(x_BSD)


class Decoder(nn.Module):
    """Causal language model.

    `plan` says how each matrix is stored (see `plan_decoder`); weights are drawn from `generator` in a fixed order, or
    left for the caller to load where it is None.
    """

    def __init__(self, config: DecoderConfig, plan: Plan, generator: torch.Generator | None):
        super().__init__()
        self.plan = plan
        self.model = Trunk(config, plan, generator)
        if not config.tie_embeddings:
            self.lm_head = plan["lm_head"].build(VOCABULARY_STD, generator)

    def forward(self, tokens_BS: Tensor, targets_BS: Tensor | None = None) -> Tensor:
        """Logits (B, S, V); or, with targets, the summed cross-entropy in nats (an IGNORED_TARGET counts nothing)."""
        with merged_together(self, tokens_BS.numel()):
            hidden_BSD = self.model(tokens_BS)
            if not hasattr(self, "lm_head"):
                return self._tied_head(hidden_BSD, targets_BS)
            if targets_BS is None:
                return self.lm_head(hidden_BSD)
            # The loss sees the R-wide intermediate of a tensor train and its merged out-side, never all logits.
            return self.lm_head(hidden_BSD.flatten(0, 1), partial(linear_cross_entropy, targets_T=targets_BS.flatten()))

    @torch.no_grad()
    def next_logits(self, tokens_BS: Tensor, cache: KeyValueCache) -> Tensor:
        """Logits (B, V) of the token that follows those in the cache and `tokens_BS`, which join them.

        An empty cache takes any number of tokens, a filled one a single token.
        """
        hidden_BD = self.model(tokens_BS, cache)[:, -1]
        return self.lm_head(hidden_BD) if hasattr(self, "lm_head") else self._tied_head(hidden_BD, None)

    def measure(self, tokens_BS: Tensor, targets_BS: Tensor) -> dict[str, Tensor]:
        """What a validation sums: the loss in nats."""
        return {"loss": self(tokens_BS, targets_BS)}

    def _tied_head(self, hidden_BSD: Tensor, targets_BS: Tensor | None) -> Tensor:
        table_VD = embedding_table(self.model.embed_tokens)
        if targets_BS is None:
            return F.linear(hidden_BSD, table_VD)
        return linear_cross_entropy(hidden_BSD.flatten(0, 1), table_VD, targets_BS.flatten())


def rotary_tables(
    length: int, head_width: int, theta: float, device: torch.device, first: int = 0
) -> tuple[Tensor, Tensor]:
    """Cosines and sines (S, E) of rotary positions (Su et al. 2021) from `first` on.

    The two halves of a head are rotated together.
    """
    frequency = theta ** (-torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width)
    position_S = torch.arange(first, first + length, device=device, dtype=torch.float32)
    angle_SE = position_S[:, None] * frequency.repeat(2)
    return angle_SE.cos(), angle_SE.sin()


def rotate(x_BHSE: Tensor, cos_SE: Tensor, sin_SE: Tensor) -> Tensor:
    first, second = x_BHSE.chunk(2, dim=-1)
    return (x_BHSE * cos_SE + torch.cat((-second, first), dim=-1) * sin_SE).to(x_BHSE.dtype)


def _block_layers(plan: Plan, index: int, depth: int, generator: torch.Generator | None) -> dict[str, nn.Module]:
    prefix = f"model.layers.{index}."
    layers = {}
    for name, layer in plan.items():
        if name.startswith(prefix):
            std = layer.inputs**-0.5
            # The two projections that write to the residual stream start smaller, so that depth adds no variance.
            if name.endswith(("o_proj", "down_proj")):
                std /= math.sqrt(2 * depth)
            layers[name.removeprefix(prefix)] = layer.build(std, generator)
    return layers
