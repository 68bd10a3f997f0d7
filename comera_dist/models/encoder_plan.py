"""Decides how every weight matrix of a BERT-style encoder is stored, by the names of BERT's published checkpoints."""

from dataclasses import asdict, dataclass

from comera_dist.errors import ConfigError
from comera_dist.models.plan import LayerPlan, Plan
from comera_dist.tensor.convert import TTMPlan, TTPlan
from comera_dist.tensor.shapes import plan_tt, plan_ttm


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of an encoder with a classification head. ConfigError where the heads do not divide the width."""

    vocab_size: int
    d_model: int
    d_ff: int
    heads: int
    layers: int
    positions: int  # longest sequence in tokens
    token_types: int
    classes: int
    norm_eps: float = 1e-12
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.d_model % self.heads:
            raise ConfigError(
                f"d_model = {self.d_model} was found, but {self.heads} heads need a multiple of {self.heads}; change "
                "d_model or heads"
            )


@dataclass(frozen=True)
class EncoderFormats:
    """How each kind of layer stores its weight, None is dense; positions, token types and the output always are.

    `intermediate` and `output` are the two layers of the feed-forward half of a block, `attention` is the other four.
    """

    word_embeddings: TTMPlan | None = None
    attention: TTPlan | None = None
    intermediate: TTPlan | None = None
    output: TTPlan | None = None
    pooler: TTPlan | None = None


DENSE = EncoderFormats()

# CoMERA's six-encoder benchmark (Yang et al. 2024, arXiv 2405.14377) and its formats at initial ranks.
SIX_ENCODER = EncoderShape(
    vocab_size=30522, d_model=768, d_ff=3072, heads=12, layers=6, positions=512, token_types=2, classes=3
)
_SQUARE = TTPlan(order=3, rank=30, in_modes=(12, 8, 8), out_modes=(8, 8, 12))
SIX_ENCODER_FORMATS = EncoderFormats(
    word_embeddings=TTMPlan(order=4, rank=32, vocab_modes=(16, 20, 10, 10), width_modes=(4, 4, 8, 6)),
    attention=_SQUARE,
    intermediate=TTPlan(order=3, rank=30, in_modes=(12, 8, 8), out_modes=(12, 16, 16)),
    output=TTPlan(order=3, rank=30, in_modes=(16, 16, 12), out_modes=(8, 8, 12)),
    pooler=_SQUARE,
)


def plan_encoder(shape: EncoderShape, formats: EncoderFormats = DENSE) -> Plan:
    """Plans every weight matrix of the encoder by module name; biases and norms are no part of a plan.

    Raises ConfigError where the modes of a format do not fit its layer.
    """
    plan = {
        "bert.embeddings.word_embeddings": _embedding(shape.vocab_size, shape.d_model, formats.word_embeddings),
        "bert.embeddings.position_embeddings": _embedding(shape.positions, shape.d_model),
        "bert.embeddings.token_type_embeddings": _embedding(shape.token_types, shape.d_model),
    }
    for index in range(shape.layers):
        plan |= {f"bert.encoder.layer.{index}.{name}": layer for name, layer in _block(shape, formats).items()}
    plan["bert.pooler.dense"] = _linear(shape.d_model, shape.d_model, formats.pooler)
    plan["classifier"] = _linear(shape.d_model, shape.classes)
    return plan


def _block(shape: EncoderShape, formats: EncoderFormats) -> Plan:
    """The matrices of one transformer block."""
    width, hidden = shape.d_model, shape.d_ff
    return {
        "attention.self.query": _linear(width, width, formats.attention),
        "attention.self.key": _linear(width, width, formats.attention),
        "attention.self.value": _linear(width, width, formats.attention),
        "attention.output.dense": _linear(width, width, formats.attention),
        "intermediate.dense": _linear(width, hidden, formats.intermediate),
        "output.dense": _linear(hidden, width, formats.output),
    }


def _embedding(rows: int, width: int, choice: TTMPlan | None = None) -> LayerPlan:
    train = choice and plan_ttm(rows, width, **asdict(choice))
    return LayerPlan(rows, width, train, is_embedding=True)


def _linear(inputs: int, outputs: int, choice: TTPlan | None = None) -> LayerPlan:
    return LayerPlan(inputs, outputs, choice and plan_tt(inputs, outputs, **asdict(choice)))
