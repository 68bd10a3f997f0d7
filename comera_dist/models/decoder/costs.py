"""Stored numbers and work of a decoder besides its planned matrices."""

from comera_dist.config.tree import Config
from comera_dist.formats.plan import Plan
from comera_dist.models.decoder.plan import EMBEDDING
from comera_dist.models.decoder.section import DecoderConfig
from comera_dist.models.work import Work, attention, tied_head


def norm_weights(section: DecoderConfig) -> int:
    """Two norms in each block and one behind them."""
    return section.d_model * (2 * section.layers + 1)


def decoder_work(config: Config, plan: Plan) -> list[Work]:
    """Causal attention, in which a token sees half of the sequence on average, and the output where it is tied."""
    model = config.model
    head = [tied_head(plan[EMBEDDING])] if model.tie_embeddings else []
    return [*head, attention(model.layers, model.d_model, config.data.seq_len / 2)]
