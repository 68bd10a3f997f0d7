"""The weight matrices of a BERT-style encoder, by the names of BERT's published checkpoints."""

from dataclasses import dataclass

from comera_dist.config.model_section import ModelSection
from comera_dist.config.tree import Config
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.plan import Plan, check_rules, plan_embedding, plan_linear
from comera_dist.models.encoder.heads import HEADS

TOKEN_TYPES = 2  # the first and the second text of a pair
EMBEDDINGS, BLOCKS = "bert.embeddings.", "bert.encoder.layer."  # prefixes of names; all other layers are the head's
WORDS = f"{EMBEDDINGS}word_embeddings"


@dataclass(frozen=True)
class EncoderFacts:
    """The facts about its data that an encoder needs; `classes` is 0 for data without labels."""

    vocab_size: int
    classes: int = 0


def plan_encoder(config: Config, facts: EncoderFacts) -> Plan:
    """The plan of every weight matrix of the configured encoder, by module name; biases are not planned.

    Positions, token types and the classifier's output are always dense; the output of a masked language model is the
    word embedding. Raises ConfigError if a rule of `tensor` matches no layer or asks for an impossible shape.
    """
    model = config.model
    linears = {f"{BLOCKS}{i}.{part}": sizes for i in range(model.layers) for part, sizes in _block(model).items()}
    head = HEADS[model.head]
    linears[head.layer] = (model.d_model, model.d_model)
    plan = {
        WORDS: plan_embedding(config, WORDS, model.format.embedding, facts.vocab_size, model.d_model),
        f"{EMBEDDINGS}position_embeddings": DensePlan(model.positions, model.d_model, is_embedding=True),
        f"{EMBEDDINGS}token_type_embeddings": DensePlan(TOKEN_TYPES, model.d_model, is_embedding=True),
    }
    for name, (inputs, outputs) in linears.items():
        plan[name] = plan_linear(config, name, getattr(model.format, format_key(name)), inputs, outputs)
    if not head.is_tied:
        plan["classifier"] = DensePlan(model.d_model, facts.classes)
    check_rules(config, plan)
    return plan


def format_key(name: str) -> str:
    """The key of `model.format` that sets the format of the layer `name`."""
    if name.startswith(BLOCKS):
        return "attention" if ".attention." in name else "mlp"
    return "embedding" if name.startswith(EMBEDDINGS) else "head"


def _block(model: ModelSection) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of the matrices of one transformer block."""
    width, hidden = model.d_model, model.d_ff
    return {
        "attention.self.query": (width, width),
        "attention.self.key": (width, width),
        "attention.self.value": (width, width),
        "attention.output.dense": (width, width),
        "intermediate.dense": (width, hidden),
        "output.dense": (hidden, width),
    }
