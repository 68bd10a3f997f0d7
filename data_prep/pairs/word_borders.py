"""Where words begin and end among the entries of a tokenizer, for masking by whole words.

Shapes: V token ids.
"""

import re

import numpy as np
from numpy.typing import NDArray

from comera_dist.data.special_tokens import SPECIALS
from comera_dist.data.tokenizer import INCOMPLETE, Tokenizer

_IN_WORD = re.compile(rf"[\w{INCOMPLETE}]")


def word_borders(tokenizer: Tokenizer) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether a word begins with token v, and whether a word ends with it, (V,) each. Special tokens come first.

    A word is a run of letters, digits and underscores; every other character is a word of its own, as BERT splits text
    before it makes pieces. A space belongs to the character after it in a piece. Bytes of rare characters are inside of
    words.
    """
    surfaces = tokenizer.surfaces()
    starts = [surface is None or not _IN_WORD.match(surface) for surface in surfaces]
    ends = [surface is None or not _IN_WORD.match(surface[-1:]) for surface in surfaces]
    special = [True] * SPECIALS
    return np.array(special + starts), np.array(special + ends)
