"""A cache of keys and values, so that a decoder reads each token once.

Shapes: B batch, K key-value heads, S new tokens, T tokens so far, C capacity, E head width.
"""

import torch
from torch import Tensor

from comera_dist.models.decoder.section import DecoderConfig


class BlockCache:
    """Keys and values of one block: a preallocated buffer of C positions, of which `length` are filled."""

    def __init__(self, buffer_2BKCE: Tensor):
        self._buffer_2BKCE, self.length = buffer_2BKCE, 0

    def extend(self, k_BKSE: Tensor, v_BKSE: Tensor) -> tuple[Tensor, Tensor]:
        """Appends new keys and values; returns all of them (B, K, T, E)."""
        first, self.length = self.length, self.length + k_BKSE.shape[2]
        assert self.length <= self._buffer_2BKCE.shape[3], "the cache is full"
        for buffer_BKCE, new_BKSE in zip(self._buffer_2BKCE, (k_BKSE, v_BKSE), strict=True):
            buffer_BKCE[:, :, first : self.length].copy_(new_BKSE)
        keys_BKTE, values_BKTE = self._buffer_2BKCE[:, :, :, : self.length]
        return keys_BKTE, values_BKTE


class KeyValueCache:
    """One BlockCache per decoder block; starts empty. Raises RuntimeError if memory cannot hold it."""

    def __init__(self, config: DecoderConfig, capacity: int, batch: int = 1, device: torch.device | None = None):
        heads, head_width = config.kv_heads or config.heads, config.d_model // config.heads
        buffers = torch.empty(config.layers, 2, batch, heads, capacity, head_width, device=device)
        self.blocks = [BlockCache(buffer) for buffer in buffers]

    @property
    def length(self) -> int:
        """The number of cached tokens."""
        return self.blocks[0].length

    def rewind(self, length: int) -> None:
        """Removes all but the first `length` tokens."""
        for block in self.blocks:
            block.length = length
