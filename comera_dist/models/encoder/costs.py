"""Stored numbers and work of an encoder besides its planned matrices."""

from comera_dist.config.tree import Config
from comera_dist.formats.plan import Plan
from comera_dist.models.encoder.heads import HEADS
from comera_dist.models.encoder.plan import BLOCKS, EMBEDDINGS, WORDS
from comera_dist.models.encoder.section import EncoderConfig
from comera_dist.models.work import Work, attention, tied_head


def norm_weights(section: EncoderConfig) -> int:
    """Two norms in each block, one before the blocks (post-norm) or behind them (pre-norm), and the head's."""
    return section.d_model * (2 * section.layers + 1 + HEADS[section.head].norms)


def token_share(config: Config, name: str) -> float:
    """1 for embeddings and blocks; the head reads few places of a row."""
    return 1.0 if name.startswith((EMBEDDINGS, BLOCKS)) else _head_share(config)


def encoder_work(config: Config, plan: Plan) -> list[Work]:
    """Attention, in which a token sees the whole sequence, and the output where it is tied."""
    model = config.model
    head = [tied_head(plan[WORDS], _head_share(config))] if HEADS[model.head].is_tied else []
    return [*head, attention(model.layers, model.d_model, config.data.seq_len)]


def _head_share(config: Config) -> float:
    return HEADS[config.model.head].places(config.data) / config.data.seq_len
