"""The encoder as BERT of the library transformers, or as Megatron-BERT if norms come first."""

from typing import Any

from comera_dist.config.tree import Config
from comera_dist.data.pairs import PairCorpus
from comera_dist.formats.plan import Plan
from comera_dist.models.encoder.heads import HEADS
from comera_dist.models.encoder.plan import TOKEN_TYPES, WORDS
from comera_dist.models.published import Published

# Name of the family and of its model_type, by the place of the norms.
FAMILIES = {"post": ("Bert", "bert"), "pre": ("MegatronBert", "megatron-bert")}
OUTPUT = "cls.predictions"  # of BERT's masked language model


def as_bert(config: Config, plan: Plan) -> Published:
    """The class of transformers for the encoder's head, with the sizes of the encoder. DataError if its data are gone.

    The output of BERT's masked language model has a bias, which is zero if ours has none.
    """
    family, model_type = FAMILIES[config.model.norm]
    data, settings = PairCorpus(config.data.folders[0]), {"model_type": model_type, **_sizes(config, plan)}
    if HEADS[config.model.head].is_tied:
        zeros = {} if config.model.output_bias else {f"{OUTPUT}.bias": plan[WORDS].inputs}
        return Published(family, "ForMaskedLM", settings, data, {f"{OUTPUT}.decoder": WORDS}, zeros)
    return Published(family, "ForSequenceClassification", settings | _classes(plan, data.labels), data)


def _sizes(config: Config, plan: Plan) -> dict[str, Any]:
    model = config.model
    return {
        "vocab_size": plan[WORDS].inputs,
        "hidden_size": model.d_model,
        "intermediate_size": model.d_ff,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "hidden_act": "gelu",
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": model.dropout,
        "max_position_embeddings": model.positions,
        "type_vocab_size": TOKEN_TYPES,
        "layer_norm_eps": model.norm_eps,
        "tie_word_embeddings": HEADS[model.head].is_tied,
    }


def _classes(plan: Plan, labels: list[str]) -> dict[str, Any]:
    """The names of all classes; a class without a label in the data gets a name as transformers gives it."""
    count = plan["classifier"].outputs
    names = [*labels, *(f"LABEL_{index}" for index in range(len(labels), count))]
    return {
        "problem_type": "single_label_classification",
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }
