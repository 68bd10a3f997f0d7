"""Validation loss and bits per byte."""

import math
from dataclasses import dataclass

from comera_dist.data.batches import ValidationBatches
from comera_dist.data.shards import TokenSplit
from comera_dist.runtime.engine import Engine


@dataclass(frozen=True)
class Validation:
    """`loss` in nats a token, `bits_per_byte` of UTF-8 text, over `tokens` tokens."""

    loss: float
    bits_per_byte: float
    tokens: int


def validate(engine: Engine, batches: ValidationBatches, split: TokenSplit) -> Validation:
    """Mean loss over the batches of all processes. Collective.

    Where a subset of the split is read, bytes a token are those of the whole split.
    """
    total, tokens = engine.total_loss(batches)
    loss = total / tokens
    return Validation(loss, loss / math.log(2) * split.tokens / split.bytes, tokens)
