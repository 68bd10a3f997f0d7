"""Windows of text whose documents are kept apart: a token sees its own document alone.

Every document of a corpus ends with EOS, and a text that a model writes begins after EOS. So an EOS among the inputs
begins a document: from it the first token is predicted, as in generation, without a look at the document before. An EOS
among the targets ends one. Therefore every target counts, and none is predicted from another document.

Shapes: B sequences of a batch, S tokens of a sequence.
"""

from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comera_dist.data.batches import Examples
from comera_dist.data.windows import TextBatch


class PackedBatch(NamedTuple):
    inputs_BS: Tensor
    starts_BS: Tensor  # the place in the sequence at which the document of each token begins
    targets_BS: Tensor


class SeparateDocuments:
    """The rows of `windows` with the starts of their documents."""

    def __init__(self, windows: Examples, eos_id: int):
        self._windows, self._eos_id = windows, eos_id

    def __len__(self) -> int:
        return len(self._windows)

    def batch(self, row_B: NDArray[np.int64], draw_B: NDArray[np.int64]) -> PackedBatch:
        inputs_BS, targets_BS = cast(TextBatch, self._windows.batch(row_B, draw_B))
        return PackedBatch(inputs_BS, document_starts(inputs_BS, self._eos_id), targets_BS)


def document_starts(inputs_BS: Tensor, eos_id: int) -> Tensor:
    """The place of the last EOS up to each token, or 0 before the first one, (B, S)."""
    place_S = torch.arange(inputs_BS.shape[1])
    return torch.where(inputs_BS == eos_id, place_S, 0).cummax(dim=1).values
