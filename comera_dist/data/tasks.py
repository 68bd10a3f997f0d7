"""What a run trains on and how it is judged: language modelling, masked language modelling, classification, clicks.

A task opens its prepared data; `facts` say what the model has to know of them.
"""

import math
from typing import Protocol

import numpy as np

from comera_dist.config.tree import Config
from comera_dist.data.batches import Examples
from comera_dist.data.clicks import ClickCorpus, ClickExamples, auc
from comera_dist.data.contents import Contents
from comera_dist.data.masking import MaskedPairs
from comera_dist.data.pairs import UNLABELLED, LabelledPairs, PairCorpus
from comera_dist.data.shards import Corpus
from comera_dist.data.subset import Subset
from comera_dist.data.vocabulary import Vocabulary, click_vocabulary, label_vocabulary, text_vocabulary
from comera_dist.data.windows import TrainWindows, ValidationWindows
from comera_dist.errors import ConfigError, DataError
from comera_dist.formats.plan import DataFacts


class Task(Protocol):
    """`fingerprint` names the data, `contents` their files, `vocabulary` what their numbers mean.

    What is called `name` is a split of them.
    """

    facts: DataFacts
    fingerprint: str
    contents: Contents
    vocabulary: Vocabulary

    def train(self) -> Examples: ...

    def held_out(self, name: str) -> Examples: ...

    def figures(self, measured: dict, name: str) -> dict[str, float | None]:
        """`loss` in nats a target, and other figures, from what Engine.measure returned; None: there is no such."""


def open_task(config: Config) -> Task:
    """The task that `config.model` is made for, on `config.data`. Raises ConfigError and DataError."""
    if config.model.kind == "decoder":
        return LanguageModelling(config)
    if config.model.kind == "dlrm":
        return ClickPrediction(config)
    return MaskedLanguageModelling(config) if config.model.head == "masked_lm" else Classification(config)


class LanguageModelling:
    """Next tokens of a tokenized corpus."""

    def __init__(self, config: Config):
        self._corpus, self._seq_len = Corpus.open(config.data.corpus), config.data.seq_len
        self.facts = DataFacts(vocab_size=self._corpus.vocab_size)
        self.fingerprint, self.contents = self._corpus.fingerprint, self._corpus.contents
        self.vocabulary = text_vocabulary(self._corpus.manifest)

    def train(self) -> TrainWindows:
        return TrainWindows(self._corpus.split("train"), self._seq_len)

    def held_out(self, name: str) -> ValidationWindows:
        return ValidationWindows(self._corpus.split(name), self._seq_len)

    def figures(self, measured: dict, name: str) -> dict[str, float]:
        """Bytes are those of UTF-8 text; where a subset is read, bytes a token are those of the whole split."""
        split, loss = self._corpus.split(name), measured["loss"] / measured["targets"]
        return {"loss": loss, "bits_per_byte": loss / math.log(2) * split.tokens / split.bytes}


class _Pairs:
    def __init__(self, config: Config):
        self._config = config
        self._corpus = PairCorpus(config.data.corpus)
        self.fingerprint, self.contents = self._corpus.fingerprint, self._corpus.contents
        self.vocabulary = text_vocabulary(self._corpus.manifest)
        vocab_size = _at_least("model.vocab_size", config.model.vocab_size, self._corpus.vocab_size)
        classes = _at_least("model.classes", config.model.classes, len(self._corpus.labels))
        self.facts = DataFacts(vocab_size=vocab_size, classes=classes)

    def figures(self, measured: dict, name: str) -> dict[str, float]:
        return {key: measured[of] / measured["targets"] for key, of in (("loss", "loss"), ("accuracy", "correct"))}


class MaskedLanguageModelling(_Pairs):
    """Hidden words of pairs of texts (Devlin et al. 2019); accuracy is that of the hidden tokens."""

    def train(self) -> MaskedPairs:
        return self._masked("train", self._config.run.seed)

    def held_out(self, name: str) -> MaskedPairs:
        """The same words are hidden whatever the seed of the run."""
        return self._masked(name, seed=0)

    def _masked(self, name: str, seed: int) -> MaskedPairs:
        data = self._config.data
        return MaskedPairs(self._corpus, name, data.seq_len, data.masked_fraction, seed)


class Classification(_Pairs):
    """Labels of pairs of texts."""

    def __init__(self, config: Config):
        super().__init__(config)
        if not self._corpus.labels:
            raise DataError(
                f"{config.data.corpus} has no labels, and model.head = classification needs some; prepare pairs with "
                "--label-key, or set model.head=masked_lm."
            )
        self.vocabulary |= label_vocabulary(self._corpus.manifest)

    def train(self) -> Subset:
        return self.held_out("train")

    def held_out(self, name: str) -> Subset:
        """The pairs that have a label: a batch of others would have no loss. DataError where none has."""
        labelled = np.flatnonzero(np.asarray(self._corpus.split(name)["labels"]) != UNLABELLED)
        if not len(labelled):
            raise DataError(
                f"no pair of split {name!r} of {self._config.data.corpus} has a label; prepare labelled pairs for it, "
                "or set model.head=masked_lm"
            )
        return Subset(LabelledPairs(self._corpus, name, self._config.data.seq_len), labelled)


class ClickPrediction:
    """Whether a row of a click log was clicked: loss is the log-loss, AUC the area under the ROC curve."""

    def __init__(self, config: Config):
        self._corpus = ClickCorpus(config.data.corpus)
        self.fingerprint, self.contents = self._corpus.fingerprint, self._corpus.contents
        self.vocabulary = click_vocabulary(self._corpus.manifest)
        model, found = config.model, self._corpus
        if model.dense_features not in (None, found.dense_features):
            raise _differs("model.dense_features", model.dense_features, found.dense_features)
        if model.table_rows is not None and len(model.table_rows) != len(found.table_rows):
            raise _differs("the length of model.table_rows", len(model.table_rows), len(found.table_rows))
        wanted = model.table_rows or found.table_rows
        rows = tuple(
            _at_least(f"model.table_rows[{index}]", given, rows)
            for index, (given, rows) in enumerate(zip(wanted, found.table_rows, strict=True))
        )
        self.facts = DataFacts(dense_features=found.dense_features, table_rows=rows)

    def train(self) -> ClickExamples:
        return self.held_out("train")

    def held_out(self, name: str) -> ClickExamples:
        return ClickExamples(self._corpus, name)

    def figures(self, measured: dict, name: str) -> dict[str, float | None]:
        """There is no AUC of rows of one label."""
        count, area = measured["targets"], auc(measured["scores"], measured["labels"])
        return {
            "loss": measured["loss"] / count,
            "accuracy": measured["correct"] / count,
            "auc": None if math.isnan(area) else area,
        }


def _at_least(key: str, configured: int | None, found: int) -> int:
    if configured is not None and configured < found:
        raise ConfigError(f"{key} = {configured} and the data have {found}; set it to {found} or more, or remove it")
    return configured or found


def _differs(key: str, configured: int, found: int) -> ConfigError:
    return ConfigError(f"{key} = {configured} and the data have {found}; set it to {found}, or remove it")
