"""The tasks of an encoder: to predict hidden words, or labels of pairs of texts."""

from collections.abc import Callable
from typing import Any

import numpy as np

from comera_dist.config.tree import Config
from comera_dist.data.batches import Subset
from comera_dist.data.masking import MaskedPairs
from comera_dist.data.pairs import UNLABELLED, LabelledPairs, PairCorpus
from comera_dist.data.tasks import Task, at_least
from comera_dist.data.vocabulary import label_vocabulary, text_vocabulary
from comera_dist.errors import DataError
from comera_dist.models.encoder.plan import EncoderFacts


class _Pairs:
    def __init__(self, config: Config):
        self._config = config
        self._corpus = PairCorpus(config.data.corpus)
        self.fingerprint, self.contents = self._corpus.fingerprint, self._corpus.contents
        self.vocabulary = text_vocabulary(self._corpus.manifest)
        vocab_size = at_least("model.vocab_size", config.model.vocab_size, self._corpus.vocab_size)
        classes = at_least("model.classes", config.model.classes, len(self._corpus.labels))
        self.facts = EncoderFacts(vocab_size, classes)

    def figures(self, measured: dict[str, Any], name: str) -> dict[str, float | None]:
        """Loss in nats and accuracy, both means over targets."""
        return {"loss": measured["loss"] / measured["targets"], "accuracy": measured["correct"] / measured["targets"]}


class MaskedLanguageModelling(_Pairs):
    """The `Task` of predicting hidden tokens of pairs of texts (Devlin et al. 2019, arXiv 1810.04805)."""

    def train(self) -> MaskedPairs:
        return self._masked("train", self._config.run.seed)

    def held_out(self, name: str) -> MaskedPairs:
        """Hides the same words whatever the seed of the run."""
        return self._masked(name, seed=0)

    def _masked(self, name: str, seed: int) -> MaskedPairs:
        data = self._config.data
        return MaskedPairs(self._corpus, name, data.seq_len, data.masked_fraction, seed)


class Classification(_Pairs):
    """The `Task` of predicting labels of pairs of texts. Raises DataError if the corpus has no labels."""

    def __init__(self, config: Config):
        super().__init__(config)
        if not self._corpus.labels:
            raise DataError(
                f"{config.data.corpus} has no labels, and model.head = classification needs some; prepare pairs with "
                "--label-key, or set model.head=masked_lm"
            )
        self.vocabulary |= label_vocabulary(self._corpus.manifest)

    def train(self) -> Subset:
        return self.held_out("train")

    def held_out(self, name: str) -> Subset:
        """The pairs that have a label: a batch of other pairs would have no loss. DataError if no pair has one."""
        labelled = np.flatnonzero(np.asarray(self._corpus.split(name)["labels"]) != UNLABELLED)
        if not len(labelled):
            raise DataError(
                f"no pair of split {name!r} of {self._config.data.corpus} has a label; prepare labelled pairs for it, "
                "or set model.head=masked_lm"
            )
        return Subset(LabelledPairs(self._corpus, name, self._config.data.seq_len), labelled)


TASKS: dict[str, Callable[[Config], Task[EncoderFacts]]] = {
    "masked_lm": MaskedLanguageModelling,
    "classification": Classification,
}
