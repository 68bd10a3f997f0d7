"""A cache of tokens, their keys and their values, so that a decoder reads each token once.

Shapes: B batch, K key-value heads, S new tokens, T tokens so far, C capacity, E head width, L blocks.
"""

import torch
from torch import Tensor

from comera_dist.models.decoder.section import DecoderConfig


class KeyValueCache:
    """Tokens, and keys and values of all blocks: preallocated buffers of C positions, of which `length` are filled.

    Starts empty. `dtype` is that of keys and values, torch's default if None. Raises RuntimeError if memory cannot hold
    it.
    """

    def __init__(
        self,
        config: DecoderConfig,
        capacity: int,
        batch: int = 1,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ):
        heads, head_width = config.kv_heads or config.heads, config.d_model // config.heads
        size = (config.layers, 2, batch, heads, capacity, head_width)
        self._buffer_L2BKCE = torch.empty(size, device=device, dtype=dtype)
        self._tokens_BC = torch.zeros(batch, capacity, dtype=torch.long, device=device)
        self.length = 0

    def add(self, tokens_BS: Tensor) -> Tensor | None:
        """Writes new tokens; returns the last one before them (B,), None if there is none."""
        end = self.length + tokens_BS.shape[1]
        assert end <= self._tokens_BC.shape[1], "the cache is full"
        self._tokens_BC[:, self.length : end] = tokens_BS
        return self._tokens_BC[:, self.length - 1] if self.length else None

    def extend(self, block: int, k_BKSE: Tensor, v_BKSE: Tensor) -> tuple[Tensor, Tensor]:
        """Writes one block's keys and values of new tokens; returns all of the block (B, K, T, E).

        New tokens count when `length` is raised, after all blocks.
        """
        end = self.length + k_BKSE.shape[2]
        assert end <= self._buffer_L2BKCE.shape[4], "the cache is full"
        keys_BKTE, values_BKTE = self._buffer_L2BKCE[block, :, :, :, :end]
        keys_BKTE[:, :, self.length :] = k_BKSE
        values_BKTE[:, :, self.length :] = v_BKSE
        return keys_BKTE, values_BKTE

    def rewind(self, length: int) -> None:
        """Removes all but the first `length` tokens."""
        self.length = length
