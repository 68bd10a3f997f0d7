"""A LLaMA-compatible decoder whose weight matrices are stored as a plan says.

Shapes: B batch, S sequence, T = B·S tokens, D width, F feed-forward width, H heads, K key-value heads, E head width,
V vocabulary. Module names are those of LLaMA's published checkpoints, so that other tools can read a densified model.
"""

import math
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comera_dist.errors import ConfigError
from comera_dist.formats.base import MatrixPlan
from comera_dist.formats.capabilities import logits_factors
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.plan import Plan
from comera_dist.formats.shared_input import shared_input
from comera_dist.formats.tensor_train.linear import merged_together
from comera_dist.models.checkpointed_block import CheckpointedBlock
from comera_dist.models.decoder.bigrams import bigram_rows, tokens_before
from comera_dist.models.decoder.head_gates import HeadGates
from comera_dist.models.decoder.kv_cache import KeyValueCache
from comera_dist.models.decoder.plan import BIGRAMS, EMBEDDING, HEAD
from comera_dist.models.decoder.positions import places_in_documents, rotary_tables, rotate
from comera_dist.models.decoder.section import DecoderConfig
from comera_dist.models.learner import Learner
from comera_dist.ops.block_logits import Weights, block_logits
from comera_dist.ops.cross_entropy import linear_cross_entropy
from comera_dist.ops.distillation import taught_by
from comera_dist.ops.grouped_heads import for_fused_kernels

# Adds keys and values (B, K, S, E) of new tokens to a block's cache; returns all of its keys and values (B, K, T, E).
Extend = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

# Block matrices start with this part of the entries that keep the variance of activations. Block trains gain 0.06 nats
# by it, dense matrices 0.01 (docs/recipe.md).
START = 0.5
# Dense projections to the residual stream start so many times smaller again, which gains 0.05 nats. Products of factors
# lose by it, because one factor learns through the other (docs/recipe.md).
QUIET = 10
VOCABULARY_STD = 0.02  # LLaMA's initializer_range: first logits near zero, first loss near ln V


class Attention(nn.Module):
    """Causal self-attention with rotary positions and grouped key-value heads: (B, S, D) → (B, S, D).

    The rotary tables are (S, E), or (B, 1, S, E) for positions of each row. With `mask_B1SS` a token sees the keys that
    it allows, without one all keys up to its own.
    """

    def __init__(self, config: DecoderConfig, layers: dict[str, nn.Module]):
        super().__init__()
        self.head_width = config.d_model // config.heads
        self.q_proj, self.k_proj = layers["self_attn.q_proj"], layers["self_attn.k_proj"]
        self.v_proj, self.o_proj = layers["self_attn.v_proj"], layers["self_attn.o_proj"]
        self.head_gates = HeadGates(config.d_model, config.heads) if config.gated_attention else None

    def forward(
        self, x_BSD: Tensor, cos: Tensor, sin: Tensor, mask_B1SS: Tensor | None = None, extend: Extend | None = None
    ) -> Tensor:
        q_BHSE, k_BKSE, v_BKSE = map(self._heads, shared_input(x_BSD, (self.q_proj, self.k_proj, self.v_proj)))
        q_BHSE, k_BKSE = rotate(q_BHSE, k_BKSE, cos, sin)
        if extend is not None:
            k_BKSE, v_BKSE = extend(k_BKSE, v_BKSE)
        k_BKSE, v_BKSE = for_fused_kernels(q_BHSE, k_BKSE, v_BKSE.to(q_BHSE.dtype), mask_B1SS is not None)
        y_BHSE = F.scaled_dot_product_attention(
            q_BHSE,
            k_BKSE,
            v_BKSE,
            attn_mask=mask_B1SS,
            # A single token sees all keys; a cache may hold more than its own.
            is_causal=mask_B1SS is None and q_BHSE.shape[2] > 1,
            enable_gqa=q_BHSE.shape[1] != k_BKSE.shape[1],
        )
        y_BSHE = y_BHSE.transpose(1, 2)
        if self.head_gates is not None:
            y_BSHE = self.head_gates(x_BSD, y_BSHE)
        y_BSD: Tensor = self.o_proj(y_BSHE.flatten(2))
        return y_BSD

    def _heads(self, x_BSD: Tensor) -> Tensor:
        return x_BSD.view(*x_BSD.shape[:2], -1, self.head_width).transpose(1, 2)


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) · up(x)), (B, S, D) → (B, S, D)."""

    def __init__(self, layers: dict[str, nn.Module]):
        super().__init__()
        self.gate_proj, self.up_proj = layers["mlp.gate_proj"], layers["mlp.up_proj"]
        self.down_proj = layers["mlp.down_proj"]

    def forward(self, x_BSD: Tensor) -> Tensor:
        gate_BSF, up_BSF = shared_input(x_BSD, (self.gate_proj, self.up_proj))
        y_BSD: Tensor = self.down_proj(F.silu(gate_BSF) * up_BSF)
        return y_BSD


class Block(CheckpointedBlock):
    """Pre-norm transformer block: (B, S, D) → (B, S, D)."""

    def __init__(self, config: DecoderConfig, layers: dict[str, nn.Module]):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.self_attn = Attention(config, layers)
        self.post_attention_layernorm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.mlp = MLP(layers)

    def compute(
        self, x_BSD: Tensor, cos: Tensor, sin: Tensor, mask_B1SS: Tensor | None = None, extend: Extend | None = None
    ) -> Tensor:
        x_BSD = x_BSD + self.self_attn(self.input_layernorm(x_BSD), cos, sin, mask_B1SS, extend)
        y_BSD: Tensor = x_BSD + self.mlp(self.post_attention_layernorm(x_BSD))
        return y_BSD


class Trunk(nn.Module):
    """Embedding, blocks and last norm: tokens (B, S) → hidden states (B, S, D).

    With `starts_BS` a token sees its own document alone, which begins at this place of the sequence.
    """

    def __init__(self, config: DecoderConfig, plan: Plan, generator: torch.Generator | None):
        super().__init__()
        self.rope_theta, self.head_width = config.rope_theta, config.d_model // config.heads
        self.embed_tokens = plan[EMBEDDING].build(VOCABULARY_STD, generator)
        self.bigram_rows = config.bigram_rows or 0
        self.embed_bigrams = plan[BIGRAMS].build(VOCABULARY_STD, generator) if self.bigram_rows else None
        self.layers = nn.ModuleList(
            Block(config, _block_layers(plan, index, config.layers, generator)) for index in range(config.layers)
        )
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)

    def forward(self, tokens_BS: Tensor, starts_BS: Tensor | None = None, cache: KeyValueCache | None = None) -> Tensor:
        length, first = tokens_BS.shape[1], cache.length if cache else 0
        assert first == 0 or length == 1, "a filled cache takes one token at a time"
        if starts_BS is None:
            position, mask_B1SS = torch.arange(first, first + length, device=tokens_BS.device), None
        else:
            position, mask_B1SS = places_in_documents(starts_BS)
        cos, sin = rotary_tables(position, self.head_width, self.rope_theta)
        x_BSD = self._embed(tokens_BS, position.view(-1, length), cache)
        for index, block in enumerate(self.layers):
            x_BSD = block(x_BSD, cos, sin, mask_B1SS, partial(cache.extend, index) if cache else None)
        if cache:
            cache.length += length
        hidden_BSD: Tensor = self.norm(x_BSD)
        return hidden_BSD

    def _embed(self, tokens_BS: Tensor, position: Tensor, cache: KeyValueCache | None) -> Tensor:
        x_BSD: Tensor = self.embed_tokens(tokens_BS)
        if self.embed_bigrams is None:
            return x_BSD
        before_BS = tokens_before(tokens_BS, cache.add(tokens_BS) if cache else None, position)
        both_BSD: Tensor = x_BSD + self.embed_bigrams(bigram_rows(tokens_BS, before_BS, self.bigram_rows))
        return both_BSD


class Decoder(Learner):
    """Causal language model, built as `Kind.build` says."""

    def __init__(self, config: DecoderConfig, plan: Plan, generator: torch.Generator | None):
        super().__init__()
        self.plan, self._config = plan, config
        self.model = Trunk(config, plan, generator)
        self.lm_head = None if config.tie_embeddings else _head(plan[HEAD], generator)

    def forward(self, tokens_BS: Tensor, *rest: Tensor | None) -> Tensor:
        """Logits (B, S, V); with targets, the summed cross-entropy in nats, to which an IGNORED_TARGET adds nothing.

        `rest` are the targets (B, S), or the starts of documents (see `Trunk`) and the targets.
        """
        *starts, targets_BS = rest or (None,)
        if targets_BS is None:
            with merged_together(self, tokens_BS.numel()):
                return self._logits(self.model(tokens_BS, *starts))
        implementation = taught_by(self.lesson(tokens_BS, *starts))
        loss_of = partial(linear_cross_entropy, targets_T=targets_BS.flatten(), implementation=implementation)
        loss: Tensor = self._with_logits(loss_of, tokens_BS, *starts)
        return loss

    def measure(self, tokens_BS: Tensor, *rest: Tensor) -> dict[str, Tensor]:
        """The summed loss in nats, of the arguments of `forward`."""
        return {"loss": self(tokens_BS, *rest)}

    def empty_cache(self, capacity: int) -> KeyValueCache:
        """A cache for `capacity` tokens of one text; see `WritesText`."""
        weight = next(self.parameters())  # `.bfloat16()` or `.double()` may have moved the model
        return KeyValueCache(self._config, capacity, device=weight.device, dtype=weight.dtype)

    @torch.no_grad()
    def next_logits(self, tokens_BS: Tensor, cache: KeyValueCache) -> Tensor:
        """Logits (B, V) of the token after those in `cache` and `tokens_BS`; see `WritesText`."""
        return self._logits(self.model(tokens_BS, cache=cache)[:, -1])

    @property
    def outputs(self) -> int:
        """See `Learner`."""
        return self.plan[EMBEDDING].inputs

    def predictions(self, tokens_BS: Tensor, *starts: Tensor | None) -> tuple[Tensor, Weights]:
        """See `Learner`."""
        factors: tuple[Tensor, Weights] = self._with_logits(lambda *factors: factors, tokens_BS, *starts)
        return factors

    def _with_logits(self, then: Callable[[Tensor, Weights], Any], tokens_BS: Tensor, *starts: Tensor | None) -> Any:
        """then(hidden, weight), of all tokens, with the factors of their logits, so that all logits never exist."""
        with merged_together(self, tokens_BS.numel()):
            hidden_TD = self.model(tokens_BS, *starts).flatten(0, 1)
            if self.lm_head is None:
                return then(*logits_factors(hidden_TD, self.model.embed_tokens))
            return self.lm_head(hidden_TD, then)

    def _logits(self, hidden: Tensor) -> Tensor:
        """(…, D) → (…, V)."""
        if self.lm_head is None:
            return block_logits(*logits_factors(hidden, self.model.embed_tokens))
        logits: Tensor = self.lm_head(hidden)
        return logits


def _head(plan: MatrixPlan, generator: torch.Generator | None) -> nn.Module:
    """The output layer. Raises ConfigError for a format, of the user's own, that would compute all logits."""
    head = plan.build(VOCABULARY_STD, generator)
    if "then" not in signature(head.forward).parameters:
        raise ConfigError(
            f"{type(head).__name__}.forward takes no `then`, with which the loss computes logits in chunks; add it as "
            f"in comera_dist/formats/dense_layers.py, or choose another format for model.format.head"
        )
    return head


def _block_layers(plan: Plan, index: int, depth: int, generator: torch.Generator | None) -> dict[str, nn.Module]:
    """The planned layers of one block, named without the block's prefix."""
    prefix = f"model.layers.{index}."
    layers = {}
    for name, layer in plan.items():
        if name.startswith(prefix):
            std = START * layer.inputs**-0.5
            # The two projections that write to the residual stream start smaller, so that depth adds no variance
            # (Radford et al. 2019, GPT-2).
            if name.endswith(("o_proj", "down_proj")):
                std /= math.sqrt(2 * depth) * (QUIET if isinstance(layer, DensePlan) else 1)
            layers[name.removeprefix(prefix)] = layer.build(std, generator)
    return layers
