"""The tasks of an encoder, one for each head: hidden words and labels of pairs of texts."""

from typing import Any

import numpy as np

from comera_dist.config.tree import Config
from comera_dist.data.batches import Subset
from comera_dist.data.masking import MaskedPairs
from comera_dist.data.pairs import UNLABELLED, LabelledPairs, PairCorpus
from comera_dist.data.tasks import at_least
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

    def figures(self, measured: dict[str, Any], name: str) -> dict[str, float]:
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
