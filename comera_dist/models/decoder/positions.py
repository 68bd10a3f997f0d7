"""The positions of tokens in their documents: rotary tables, and the mask of attention within documents.

Shapes: B batch, S sequence, E head width, H heads.
"""

import torch
from torch import Tensor

from comera_dist.ops.liger import has_liger


def rotary_tables(position: Tensor, head_width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines (…, S, E) of rotary positions (…, S) (Su et al. 2021, arXiv 2104.09864).

    Both halves of a head have the same angles, as in LLaMA's checkpoints for transformers.
    """
    exponent = -torch.arange(0, head_width, 2, device=position.device, dtype=torch.float32) / head_width
    angle = position.float()[..., None] * (theta**exponent).repeat(2)
    return angle.cos(), angle.sin()


def rotate(q_BHSE: Tensor, k_BKSE: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys turned by the tables (S, E) of all rows, or (B, 1, S, E) of each.

    On a GPU by Liger's kernel, if it is installed: ten operations of torch are a sixth of a step there.
    """
    if has_liger(q_BHSE.device, q_BHSE.dtype):
        return turned_by_liger(q_BHSE, k_BKSE, cos, sin)
    return _turned(q_BHSE, cos, sin), _turned(k_BKSE, cos, sin)


def turned_by_liger(q_BHSE: Tensor, k_BKSE: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """`rotate` by Liger's kernel; q and k have one dtype."""
    from liger_kernel.ops.rope import LigerRopeFunction

    # The kernel writes to its arguments without telling autograd, so it gets copies.
    turned: tuple[Tensor, Tensor] = LigerRopeFunction.apply(q_BHSE.clone(), k_BKSE.clone(), cos, sin)
    return turned


def _turned(x_BHSE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x_BHSE.chunk(2, dim=-1)
    return (x_BHSE * cos + torch.cat((-second, first), dim=-1) * sin).to(x_BHSE.dtype)


def places_in_documents(starts_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Positions (B, 1, S) that begin with 0 at the start of each document, and the mask (B, 1, S, S) of attention.

    A token attends to the tokens of its document up to itself. `starts_BS` is the place in the sequence at which the
    document of each token begins.
    """
    place_S = torch.arange(starts_BS.shape[1], device=starts_BS.device)
    mask_BSS = (place_S <= place_S[:, None]) & (place_S >= starts_BS[:, :, None])
    return (place_S - starts_BS)[:, None], mask_BSS[:, None]
