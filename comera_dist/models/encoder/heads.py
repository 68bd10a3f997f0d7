"""The heads of an encoder. Each has a module in model.py and a task in task.py besides."""

from collections.abc import Callable
from dataclasses import dataclass

from comera_dist.config.data_section import Data, masked_places


@dataclass(frozen=True)
class Head:
    """An output of the encoder: either its word embedding (`is_tied`), or a dense classifier of sequences."""

    layer: str  # module name of the square layer before the output
    row_keys: frozenset[str]  # keys of `data`, apart from the corpus, that determine the content of a row
    places: Callable[[Data], int]  # positions of a row that the head reads
    is_tied: bool
    norms: int  # LayerNorms of the head


HEADS = {
    "masked_lm": Head(
        "cls.predictions.transform.dense",
        row_keys=frozenset({"seq_len", "masked_fraction"}),
        places=lambda data: masked_places(data.seq_len, data.masked_fraction),
        is_tied=True,
        norms=1,
    ),
    "classification": Head(
        "bert.pooler.dense", row_keys=frozenset({"seq_len"}), places=lambda data: 1, is_tied=False, norms=0
    ),
}
