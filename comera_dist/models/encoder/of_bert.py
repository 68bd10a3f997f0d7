"""BERT and Megatron-BERT of the library transformers as the encoder. Both compute the same, so nothing is lost."""

from collections.abc import Sequence
from typing import Any

from comera_dist.config.tree import Config
from comera_dist.data.pairs import PairCorpus
from comera_dist.errors import ConfigError, DataError
from comera_dist.formats.plan import Plan
from comera_dist.models.adopted import Settings, check_numbers, check_values, shown, value_of
from comera_dist.models.encoder.families import FAMILIES, OUTPUT
from comera_dist.models.encoder.heads import HEADS
from comera_dist.models.encoder.plan import TOKEN_TYPES, WORDS
from comera_dist.models.encoder.vocabulary_rows import rows_for_us, special_ids

SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings")
# Heads of transformers by the ends of their classes' names. The second output of ForPreTraining is not taken over.
ENDS = {"ForMaskedLM": "masked_lm", "ForPreTraining": "masked_lm", "ForSequenceClassification": "classification"}
EXPECTED: dict[str, Any] = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "type_vocab_size": TOKEN_TYPES,
}
EXPECTED_OF_HEAD: dict[str, dict[str, Any]] = {
    "masked_lm": {"tie_word_embeddings": True},
    "classification": {"problem_type": "single_label_classification"},
}
# Values that transformers takes where a config.json does not name them (BertConfig).
DROPOUT, NORM_EPS, CLASSES = 0.1, 1e-12, 2


def of_bert(settings: Settings) -> dict[str, Any]:
    """The keys of `model`, but its kind, of a BERT or Megatron-BERT with the configuration `settings`.

    The dropout is that of hidden states, also in attention. Raises ConfigError for a model that computes something else
    than our encoder.
    """
    check_numbers(settings, SIZES)
    norm = next(norm for norm, family in FAMILIES.items() if family.model_type == settings["model_type"])
    head = _head(settings, FAMILIES[norm].name)
    check_values(settings, EXPECTED | EXPECTED_OF_HEAD[head], "our encoder")
    return {
        "head": head,
        "norm": norm,
        "d_model": settings["hidden_size"],
        "layers": settings["num_hidden_layers"],
        "heads": settings["num_attention_heads"],
        "d_ff": settings["intermediate_size"],
        "positions": settings["max_position_embeddings"],
        "norm_eps": value_of(settings, "layer_norm_eps", NORM_EPS),
        "dropout": value_of(settings, "hidden_dropout_prob", DROPOUT),
        "format": "dense",
        **({"output_bias": True} if HEADS[head].is_tied else {"classes": len(_classes(settings))}),
    }


def rows_of_bert(config: Config, plan: Plan, settings: Settings) -> dict[str, Sequence[int]]:
    """Rows of the vocabulary, and of the classes, whose names must be those of the labels.

    Raises ConfigError if the model has no class for a label, DataError if the tokenizer lacks a special token.
    """
    data, size = PairCorpus(config.data.folders[0]), plan[WORDS].inputs
    ids = special_ids(data)
    if ids is None:
        raise DataError(
            f"{data.path} was made with a sentencepiece model; prepare it with the tokenizer.json of the model"
        )
    tokens = rows_for_us(ids, size)
    if HEADS[config.model.head].is_tied:
        return dict.fromkeys((f"{WORDS}.weight", f"{OUTPUT}.bias"), tokens)
    classes = _rows_of_classes(_classes(settings), data)
    return {f"{WORDS}.weight": tokens, "classifier.weight": classes, "classifier.bias": classes}


def _head(settings: Settings, family: str) -> str:
    heads = {family + end: head for end, head in ENDS.items()}
    named = settings.get("architectures")
    found = shown(named[0]) if isinstance(named, list) and named else None
    if found not in heads:
        raise ConfigError(
            f"config.json has architectures = {found}, expected one of {', '.join(heads)}; take such a model"
        )
    return heads[found]


def _classes(settings: Settings) -> list[str]:
    """The names of all classes. ConfigError for a single one, with which transformers computes a number."""
    named = settings.get("id2label")
    named = named if isinstance(named, dict) else {}
    count = len(named) or CLASSES
    if count < 2:
        raise ConfigError(f"config.json has {count} class, expected 2 or more; take a model that classifies")
    names = [named.get(str(index), f"LABEL_{index}") for index in range(count)]
    return [name if isinstance(name, str) else shown(name) for name in names]


def _rows_of_classes(names: list[str], data: PairCorpus) -> list[int]:
    """The rows of the labels of the data, then those of other classes."""
    if missing := [label for label in data.labels if label not in names]:
        raise ConfigError(
            f"{data.path} has the label {missing[0]} and the model has the classes {shown(', '.join(names))}; name its "
            f"classes as the labels in id2label of config.json"
        )
    labelled = [names.index(label) for label in data.labels]
    return [*labelled, *(index for index in range(len(names)) if index not in labelled)]
