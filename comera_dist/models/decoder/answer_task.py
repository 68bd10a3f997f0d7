"""The task of a decoder: to answer prompts."""

import math
from typing import Any

from comera_dist.config.tree import Config
from comera_dist.data.answers import AnswerCorpus, PackedAnswers
from comera_dist.data.vocabulary import text_vocabulary
from comera_dist.errors import ConfigError
from comera_dist.models.decoder.plan import DecoderFacts


class Answering:
    """The `Task` of predicting the tokens of answers after their prompts.

    Raises ConfigError if the examples of a row would see each other.
    """

    def __init__(self, config: Config):
        if config.data.documents != "separate":
            raise ConfigError(
                f"data.documents = {config.data.documents} would let the examples of {config.data.corpus} see each "
                f"other, because a row holds several; set data.documents=separate"
            )
        self._corpus, self._seq_len = AnswerCorpus(config.data.corpus), config.data.seq_len
        self.facts = DecoderFacts(self._corpus.vocab_size)
        self.fingerprint, self.contents = self._corpus.fingerprint, self._corpus.contents
        self.vocabulary = text_vocabulary(self._corpus.manifest)

    def train(self) -> PackedAnswers:
        return self.held_out("train")

    def held_out(self, name: str) -> PackedAnswers:
        return PackedAnswers(self._corpus, name, self._seq_len)

    def figures(self, measured: dict[str, Any], name: str) -> dict[str, float | None]:
        """Loss in nats per token of an answer, and bits per byte of the split's answers as UTF-8."""
        counts, loss = self._corpus.counts[name], measured["loss"] / measured["targets"]
        return {"loss": loss, "bits_per_byte": loss / math.log(2) * counts.targets / counts.bytes}
