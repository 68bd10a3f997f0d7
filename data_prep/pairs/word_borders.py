"""Where words begin and end among the entries of a tokenizer, for masking by whole words.

Shapes: V token ids.
"""

import re
from pathlib import Path

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from comera_dist.data.special_tokens import SPECIALS
from comera_dist.data.tokenizer import SPACE_MARK

_IN_WORD = re.compile(r"\w")


def word_borders(tokenizer_path: Path) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether a word begins with token v, and whether a word ends with it, (V,) each. Special tokens come first.

    A word is a run of letters, digits and underscores; every other character is a word of its own, as BERT splits text
    before it makes pieces. A space belongs to the character after it in a piece. Bytes of rare characters are inside of
    words.
    """
    model = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer_path))
    starts, ends = [True] * SPECIALS, [True] * SPECIALS
    for token in range(model.get_piece_size()):
        piece = model.id_to_piece(token).replace(SPACE_MARK, " ")
        control = model.is_control(token) or model.is_unknown(token)
        starts.append(control or not (model.is_byte(token) or _IN_WORD.match(piece)))
        ends.append(control or not (model.is_byte(token) or _IN_WORD.match(piece[-1:])))
    return np.array(starts), np.array(ends)
