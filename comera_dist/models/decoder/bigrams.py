"""A second embedding table, whose rows pairs of a token and the one before it share by a hash.

A lookup costs no product with a matrix, so such a table grows a model without growing its FLOPs (n-gram embeddings of
Huang et al. 2025, "Over-Tokenized Transformer", arXiv 2501.16975).

Shapes: B batch, S sequence.
"""

import torch
from torch import Tensor

# Odd and near 2³² / 1.6 and 2³² / 1.9, as multiplicative hashing wants them (xxHash's first two primes).
FACTOR_BEFORE, FACTOR_TOKEN = 2654435761, 2246822519
BITS = 32

NOTHING = 0  # the token before the first one of a text; of sentencepiece's ids the one of unknown pieces


def tokens_before(tokens_BS: Tensor, last_B: Tensor | None, position: Tensor) -> Tensor:
    """The token before each one (B, S), NOTHING where `position` (S,) or (B, S) in its document is 0.

    `last_B` is the token before the sequence, if there is one.
    """
    first_B = tokens_BS[:, 0] if last_B is None else last_B
    before_BS = torch.cat((first_B[:, None], tokens_BS[:, :-1]), dim=1)
    return before_BS.masked_fill(position == 0, NOTHING)


def bigram_rows(tokens_BS: Tensor, before_BS: Tensor, rows: int) -> Tensor:
    """Rows (B, S), at least 0 and below `rows`, of pairs of tokens.

    A multiply-shift hash (Thorup 2015, arXiv 1504.06804). Ids are below 2³⁰ and `rows` below 2³¹, so 64 bits suffice.
    """
    mixed_BS: Tensor = (before_BS * FACTOR_BEFORE + tokens_BS * FACTOR_TOKEN) % 2**BITS
    return mixed_BS.mul(rows) >> BITS
