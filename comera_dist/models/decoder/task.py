"""The task of a decoder: to predict the next tokens of a tokenized corpus."""

import math
from typing import Any

from comera_dist.config.tree import Config
from comera_dist.data.batches import Examples
from comera_dist.data.documents import SeparateDocuments
from comera_dist.data.shards import Corpus
from comera_dist.data.vocabulary import text_vocabulary
from comera_dist.data.windows import TrainWindows, ValidationWindows
from comera_dist.models.decoder.plan import DecoderFacts


class LanguageModelling:
    """The `Task` of predicting the next tokens of a tokenized corpus."""

    def __init__(self, config: Config):
        self._corpus, self._seq_len = Corpus(config.data.corpus), config.data.seq_len
        self._separate = config.data.documents == "separate"
        self.facts = DecoderFacts(self._corpus.vocab_size)
        self.fingerprint, self.contents = self._corpus.fingerprint, self._corpus.contents
        self.vocabulary = text_vocabulary(self._corpus.manifest)

    def train(self) -> Examples:
        return self._documents(TrainWindows(self._corpus.split("train"), self._seq_len))

    def held_out(self, name: str) -> Examples:
        return self._documents(ValidationWindows(self._corpus.split(name), self._seq_len))

    def figures(self, measured: dict[str, Any], name: str) -> dict[str, float | None]:
        """Loss in nats per token, and bits per byte of UTF-8 text by the bytes per token of the whole split."""
        split, loss = self._corpus.split(name), measured["loss"] / measured["targets"]
        return {"loss": loss, "bits_per_byte": loss / math.log(2) * split.tokens / split.bytes}

    def _documents(self, windows: Examples) -> Examples:
        return SeparateDocuments(windows, self._corpus.eos_id) if self._separate else windows
