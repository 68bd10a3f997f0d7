"""Pairs of texts with hidden words: masked language modelling (Devlin et al. 2019, section 3.1) by whole words.

Words are chosen as in BERT's whole-word variant (google-research/bert, create_pretraining_data.py, May 2019): in
random order, each word that still fits into the row's share is hidden. Each token of a hidden word becomes [MASK] in
80 % of the cases, a random token in 10 %, and stays in 10 %.

Shapes: B rows of a batch, S places of a row, W words of a row (at most S), P places to predict, V token ids.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comera_dist.config.data_section import masked_places
from comera_dist.data.batches import FILLER
from comera_dist.data.pairs import JoinedPairs, PairCorpus
from comera_dist.data.special_tokens import MASK, SPECIALS
from comera_dist.ops.targets import IGNORED_TARGET

_MASKED, _RANDOM = 0.8, 0.1  # shares of hidden tokens (Devlin et al. 2019, section 3.1)


class MaskedBatch(NamedTuple):
    tokens_BS: Tensor
    token_types_BS: Tensor
    positions_BP: Tensor
    targets_BP: Tensor


class MaskedPairs:
    """Pairs of which `masked_fraction` of the tokens are to be predicted, at least one a row.

    P is that fraction of S, rounded up. Unused places have position 0 and IGNORED_TARGET. The hidden words of a row and
    their replacements are a function of (seed, draw).
    """

    def __init__(self, corpus: PairCorpus, name: str, seq_len: int, masked_fraction: float, seed: int):
        self._pairs, self._vocab_size = JoinedPairs(corpus, name, seq_len), corpus.vocab_size
        self._starts_V, self._ends_V = corpus.word_borders()
        self._fraction, self._places = masked_fraction, masked_places(seq_len, masked_fraction)
        self._key = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]

    def __len__(self) -> int:
        return len(self._pairs)

    def batch(self, row_B: NDArray[np.int64], draw_B: NDArray[np.int64]) -> MaskedBatch:
        """The rows `row_B`. A row FILLER has no target."""
        tokens_BS, types_BS = self._pairs.read(np.maximum(row_B, 0))
        order_BW, fate_BS, token_BS = self._draws(draw_B, tokens_BS.shape[1])
        share_B = np.maximum(1, np.rint((tokens_BS >= SPECIALS).sum(1) * self._fraction)).astype(np.int64)
        hidden_BS = choose_words(word_numbers(tokens_BS, self._starts_V, self._ends_V), order_BW, share_B)
        # A stable sort puts the hidden places first and leaves them in order.
        positions_BP = np.argsort(~hidden_BS, axis=1, kind="stable")[:, : self._places]
        unused_BP = (np.arange(self._places) >= hidden_BS.sum(1)[:, None]) | (row_B == FILLER)[:, None]
        targets_BP = np.where(unused_BP, IGNORED_TARGET, np.take_along_axis(tokens_BS, positions_BP, 1))
        random_BS = SPECIALS + (token_BS * (self._vocab_size - SPECIALS)).astype(np.int64)
        shown_BS = np.where(fate_BS < _MASKED, MASK, np.where(fate_BS < _MASKED + _RANDOM, random_BS, tokens_BS))
        arrays = np.where(hidden_BS, shown_BS, tokens_BS), types_BS, np.where(unused_BP, 0, positions_BP), targets_BP
        return MaskedBatch(*map(torch.from_numpy, arrays))

    def _draws(self, draw_B: NDArray[np.int64], seq_len: int) -> NDArray[np.float64]:
        """Uniform numbers in 0..1, (3, B, S): row b has a Philox stream with the key (seed, draw_B[b])."""
        keys = (np.array([self._key, draw]) for draw in draw_B.astype(np.uint64))
        streams = (np.random.Generator(np.random.Philox(key=key)) for key in keys)
        return np.stack([stream.random((3, seq_len)) for stream in streams], axis=1)


def word_numbers(
    tokens_BS: NDArray[np.int64], starts_V: NDArray[np.bool_], ends_V: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """The number of each token's word in its row, counted from 0, (B, S); -1 for special tokens and padding.

    A token starts a word if `starts_V` marks it, or if the previous token ends one (every special token does).
    """
    text_BS = tokens_BS >= SPECIALS
    begins_BS = starts_V[tokens_BS]
    begins_BS[:, 1:] |= ends_V[tokens_BS[:, :-1]]
    return np.where(text_BS, np.cumsum(begins_BS & text_BS, axis=1) - 1, -1)


def choose_words(
    word_BS: NDArray[np.int64], order_BW: NDArray[np.float64], share_B: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Places of the hidden words, (B, S): by rising `order_BW`, each word that fits into what is left of the share.

    A row none of whose words fits hides the first token of one; a row without words hides nothing.
    """
    rows, places = word_BS.shape
    # The last column counts tokens of no word, numbered -1.
    length_BW: NDArray[np.int64] = np.zeros((rows, places + 1), dtype=np.int64)
    np.add.at(length_BW, (np.arange(rows)[:, None], word_BS), 1)
    length_BW = length_BW[:, :places]
    ranked_BW = np.argsort(np.where(length_BW > 0, order_BW, 2.0), axis=1)  # 2 is above all orders: no word
    chosen_BW = np.zeros((rows, places + 1), dtype=bool)
    np.put_along_axis(chosen_BW, ranked_BW, _fits(np.take_along_axis(length_BW, ranked_BW, 1), share_B), axis=1)
    hidden_BS = np.take_along_axis(chosen_BW, word_BS % (places + 1), axis=1)
    none_B = ~hidden_BS.any(axis=1) & (word_BS >= 0).any(axis=1)
    hidden_BS[none_B, np.argmax(word_BS == ranked_BW[:, :1], axis=1)[none_B]] = True
    return hidden_BS


def _fits(length_BW: NDArray[np.int64], share_B: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The words that are taken, (B, W): in order of columns, each that fits into what is left of the share."""
    left_B, fits_BW = share_B.copy(), np.zeros(length_BW.shape, dtype=bool)
    for rank in range(int((length_BW > 0).sum(1).max())):
        length_B = length_BW[:, rank]
        fits_BW[:, rank] = (length_B > 0) & (length_B <= left_B)
        left_B -= length_B * fits_BW[:, rank]
    return fits_BW
