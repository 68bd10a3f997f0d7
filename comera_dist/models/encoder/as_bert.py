"""The encoder as BERT of the library transformers, or as Megatron-BERT if norms come first."""

from typing import Any

from comera_dist.config.tree import Config
from comera_dist.data.pairs import PairCorpus, class_names
from comera_dist.formats.plan import Plan
from comera_dist.models.encoder.families import FAMILIES, OUTPUT
from comera_dist.models.encoder.heads import HEADS
from comera_dist.models.encoder.plan import TOKEN_TYPES, WORDS
from comera_dist.models.encoder.vocabulary_rows import rows_for_them, special_ids
from comera_dist.models.published import Published


def as_bert(config: Config, plan: Plan) -> Published:
    """The class of transformers for the encoder's head, with the sizes of the encoder. DataError if its data are gone.

    The output of BERT's masked language model has a bias, which is zero if ours has none. With a tokenizer.json, rows
    of the vocabulary go back to its order.
    """
    family, data, size = FAMILIES[config.model.norm], PairCorpus(config.data.folders[0]), plan[WORDS].inputs
    ids, words, bias = special_ids(data), f"{WORDS}.weight", f"{OUTPUT}.bias"
    order = list(range(size)) if ids is None else rows_for_them(ids, size)
    settings = {"model_type": family.model_type, "vocab_size": len(order), **_sizes(config)}
    if HEADS[config.model.head].is_tied:
        rows = {} if ids is None else {words: order, bias: order}
        zeros = {} if config.model.output_bias else {bias: size}
        return Published(family.name, "ForMaskedLM", settings, data, rows, {f"{OUTPUT}.decoder": WORDS}, zeros)
    rows = {} if ids is None else {words: order}
    return Published(family.name, "ForSequenceClassification", settings | _classes(plan, data.labels), data, rows)


def _sizes(config: Config) -> dict[str, Any]:
    model = config.model
    return {
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
    names = class_names(labels, plan["classifier"].outputs)
    return {
        "problem_type": "single_label_classification",
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }
