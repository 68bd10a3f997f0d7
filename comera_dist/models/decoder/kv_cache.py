"""Keys and values of the tokens that a decoder has read, so that the next token costs the work of one.

Shapes: B batch, K key-value heads, S new tokens, T tokens so far, C the most that there is room for, E head width.
"""

import torch
from torch import Tensor

from comera_dist.models.decoder.section import DecoderConfig


class BlockCache:
    """Those of one block: `length` tokens, in room for C."""

    def __init__(self, room_2BKCE: Tensor):
        self._room_2BKCE, self.length = room_2BKCE, 0

    def extend(self, k_BKSE: Tensor, v_BKSE: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values (B, K, T, E), the new ones last."""
        first, self.length = self.length, self.length + k_BKSE.shape[2]
        assert self.length <= self._room_2BKCE.shape[3], "the cache is full"
        for room_BKCE, new_BKSE in zip(self._room_2BKCE, (k_BKSE, v_BKSE), strict=True):
            room_BKCE[:, :, first : self.length].copy_(new_BKSE)
        return self._room_2BKCE[:, :, :, : self.length].unbind()


class KeyValueCache:
    """Those of all blocks of a decoder, empty at first. RuntimeError where memory does not hold it."""

    def __init__(self, config: DecoderConfig, capacity: int, batch: int = 1, device: torch.device | None = None):
        heads, head_width = config.kv_heads or config.heads, config.d_model // config.heads
        room = torch.empty(config.layers, 2, batch, heads, capacity, head_width, device=device)
        self.blocks = [BlockCache(part) for part in room]

    @property
    def length(self) -> int:
        """Tokens in it."""
        return self.blocks[0].length

    def rewind(self, length: int) -> None:
        """Forgets all but the first `length` tokens."""
        for block in self.blocks:
            block.length = length
