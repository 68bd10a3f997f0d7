"""The weight matrices of a BERT-style encoder, by the names of BERT's published checkpoints."""

from comera_dist.config.tree import Config
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.plan import Plan, check_rules, plan_embedding, plan_linear

TOKEN_TYPES = 2  # the first and the second text of a pair


def plan_encoder(config: Config, vocab_size: int, classes: int) -> Plan:
    """Plans every weight matrix of the encoder that `config` describes, by module name; biases are no part of it.

    Positions, token types and the classifier's output are always dense; the output of a masked language model is the
    word embedding itself. Raises ConfigError where a rule of `tensor` matches no layer or asks for an impossible shape.
    """
    model = config.model
    width, formats = model.d_model, model.format
    words = "bert.embeddings.word_embeddings"
    plan = {
        words: plan_embedding(config, words, formats.embedding, vocab_size, width),
        "bert.embeddings.position_embeddings": DensePlan(model.positions, width, is_embedding=True),
        "bert.embeddings.token_type_embeddings": DensePlan(TOKEN_TYPES, width, is_embedding=True),
    }
    for index in range(model.layers):
        for part, (kind, inputs, outputs) in _block(config).items():
            name = f"bert.encoder.layer.{index}.{part}"
            plan[name] = plan_linear(config, name, kind, inputs, outputs)
    head = "bert.pooler.dense" if model.head == "classification" else "cls.predictions.transform.dense"
    plan[head] = plan_linear(config, head, formats.head, width, width)
    if model.head == "classification":
        plan["classifier"] = DensePlan(width, classes)
    check_rules(config, plan)
    return plan


def _block(config: Config) -> dict[str, tuple[str, int, int]]:
    """(format, inputs, outputs) of the matrices of one transformer block."""
    width, hidden, formats = config.model.d_model, config.model.d_ff, config.model.format
    return {
        "attention.self.query": (formats.attention, width, width),
        "attention.self.key": (formats.attention, width, width),
        "attention.self.value": (formats.attention, width, width),
        "attention.output.dense": (formats.attention, width, width),
        "intermediate.dense": (formats.mlp, width, hidden),
        "output.dense": (formats.mlp, hidden, width),
    }
