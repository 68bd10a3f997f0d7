"""The positions of tokens in their documents: rotary tables, and the mask of attention within documents.

Shapes: B batch, S sequence, E head width, H heads.
"""

import torch
from torch import Tensor


def rotary_tables(position: Tensor, head_width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines (…, S, E) of rotary positions (…, S) (Su et al. 2021, arXiv 2104.09864).

    Both halves of a head have the same angles, as in LLaMA's checkpoints for transformers.
    """
    exponent = -torch.arange(0, head_width, 2, device=position.device, dtype=torch.float32) / head_width
    angle = position.float()[..., None] * (theta**exponent).repeat(2)
    return angle.cos(), angle.sin()


def rotate(x_BHSE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys turned by the tables (S, E) of all rows, or (B, 1, S, E) of each."""
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
