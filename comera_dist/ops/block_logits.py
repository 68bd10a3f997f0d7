"""Logits of a vocabulary whose weight is block-diagonal.

Shapes: T tokens, V vocabulary, K width of the hidden state. Block j is (V_j, K_j); the V_j add up to V, the K_j to K.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

Weights = Tensor | Sequence[Tensor]  # a whole weight (V, K), or its diagonal blocks


def as_blocks(weight: Weights) -> Sequence[Tensor]:
    """The diagonal blocks; a whole weight is its only one."""
    return [weight] if isinstance(weight, Tensor) else weight


def count_rows(blocks: Sequence[Tensor]) -> int:
    """V."""
    return sum(len(block) for block in blocks)


def block_logits(hidden: Tensor, weight: Weights) -> Tensor:
    """(…, V) of hidden states (…, K)."""
    blocks = as_blocks(weight)
    if len(blocks) == 1:
        return F.linear(hidden, blocks[0])
    parts = torch.split(hidden, [block.shape[1] for block in blocks], -1)
    return torch.cat([F.linear(part, block) for part, block in zip(parts, blocks, strict=True)], -1)


def with_bias(hidden: Tensor, weight: Weights, bias_V: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    """Hidden states and blocks whose `block_logits` are those of `hidden` (…, K) and `weight`, plus a bias.

    Each block has its part of the bias as a further column, which is multiplied by a further feature, a one.
    """
    blocks = as_blocks(weight)
    parts, ones = torch.split(hidden, [block.shape[1] for block in blocks], -1), hidden.new_ones(*hidden.shape[:-1], 1)
    biases = torch.split(bias_V, [len(block) for block in blocks])
    columns = [torch.cat([block, bias[:, None]], 1) for block, bias in zip(blocks, biases, strict=True)]
    return torch.cat([column for part in parts for column in (part, ones)], -1), columns
