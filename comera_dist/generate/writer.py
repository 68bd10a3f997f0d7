"""Text from a trained model, token by token.

Shapes: V vocabulary.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from comera_dist.config.model_section import ModelSection
from comera_dist.data.shards import Corpus
from comera_dist.data.tokenizer import Tokenizer
from comera_dist.errors import ConfigError, DataError
from comera_dist.generate.merged import merge_once
from comera_dist.generate.sampling import Sampling
from comera_dist.models.base import TokenCache, WritesText
from comera_dist.models.family import kind_of
from comera_dist.run.trained import Trained, load_trained
from comera_dist.runtime.processes import Processes

INCOMPLETE = "\ufffd"  # what a tokenizer makes of bytes that are no character


@dataclass(frozen=True)
class Writer:
    """A model that goes on with texts; its cores are merged already."""

    model: nn.Module
    config: ModelSection
    tokenizer: Tokenizer
    step: int  # of the checkpoint that it was read from
    seq_len: int  # tokens of the sequences that it was trained on

    def samples(
        self, prompt: str, tokens: int, sampling: Sampling, seed: int, count: int = 1
    ) -> Iterator[Iterator[int]]:
        """`count` continuations of `prompt`, each of at most `tokens` ids: EOS is the last one where the model ends.

        The prompt is read once, as the beginning of a document. Continuation i of a seed is the first of seed + i. Each
        is to be read to its end before the next. ConfigError where memory does not hold so many tokens.
        """
        prompt_ids = [self.tokenizer.eos_id, *self.tokenizer.encode(prompt)]
        device = next(self.model.parameters()).device
        cache = self._cache(len(prompt_ids) + tokens, device)
        logits_V = self.model.next_logits(torch.tensor([prompt_ids], device=device), cache)[0]
        for index in range(count):
            cache.rewind(len(prompt_ids))
            generator = torch.Generator().manual_seed(seed + index)
            yield continuation(self.model, cache, logits_V, tokens, sampling, generator, self.tokenizer.eos_id)

    def _cache(self, capacity: int, device: torch.device) -> TokenCache:
        try:
            return kind_of(self.config).empty_cache(self.config, capacity, device)
        except (RuntimeError, TypeError, OverflowError, MemoryError) as error:  # torch has several names for too much
            raise ConfigError(
                f"keys and values of {capacity} tokens do not fit in memory; lower --tokens or shorten the prompt"
            ) from error


def open_writer(run: Path, processes: Processes | None = None, step: int | None = None) -> Writer:
    """The model of a run's newest undamaged checkpoint, or of that of `step`, and the tokenizer of its corpus.

    Raises ConfigError where it writes no text, CheckpointError, and DataError where the corpus is another one.
    """
    return writer_of(load_trained(run, processes, step), run)


def writer_of(trained: Trained, run: Path) -> Writer:
    """The decoder of `run` with the tokenizer of its corpus. Raises ConfigError and DataError."""
    if not isinstance(kind_of(trained.config.model), WritesText):
        raise ConfigError(
            f"{run} is a run of model.kind = {trained.config.model.kind}, which writes no text; name a run of a decoder"
        )
    return Writer(
        merge_once(trained.model),
        trained.config.model,
        _tokenizer_of(trained),
        trained.checkpoint.manifest["step"],
        trained.config.data.seq_len,
    )


def _tokenizer_of(trained: Trained) -> Tokenizer:
    folder = trained.config.data.corpus
    corpus, known = Corpus(folder), trained.checkpoint.run["cursor"]["fingerprint"]
    if corpus.fingerprint != known:
        raise DataError(
            f"{folder} is corpus {corpus.fingerprint[:12]} and the model was trained on {known[:12]}, whose tokenizer "
            f"it needs; put that corpus back in its place"
        )
    tokenizer = Tokenizer(corpus.tokenizer_path)
    if (tokenizer.fingerprint, tokenizer.vocab_size) != (corpus.manifest["tokenizer"]["sha256"], corpus.vocab_size):
        raise DataError(f"{corpus.tokenizer_path} is not the tokenizer that made {folder}; copy the corpus again")
    return tokenizer


def continuation(
    model: nn.Module,
    cache: TokenCache,
    logits_V: torch.Tensor,
    tokens: int,
    sampling: Sampling,
    generator: torch.Generator,
    eos_id: int,
) -> Iterator[int]:
    """At most `tokens` ids that follow those in the cache, after which `logits_V` came; the last may be EOS."""
    for count in range(1, tokens + 1):
        token = sampling.draw(logits_V, generator)
        yield token
        if token == eos_id or count == tokens:
            return
        logits_V = model.next_logits(torch.tensor([[token]], device=logits_V.device), cache)[0]


def text_pieces(tokenizer: Tokenizer, ids: Iterable[int]) -> Iterator[str]:
    """The text of `ids` piece by piece, each as soon as the bytes of its last character are all there."""
    pending: list[int] = []
    for token in ids:
        pending.append(token)
        text = tokenizer.decode(pending)
        if not text.endswith(INCOMPLETE):
            yield text
            pending.clear()
    if pending:
        yield tokenizer.decode(pending)
