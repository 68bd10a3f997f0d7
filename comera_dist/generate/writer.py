"""Generates text with a trained model, token by token.

Shapes: V vocabulary.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from comera_dist.data.open_text import open_text, prompt_form
from comera_dist.data.prompt_form import PromptForm
from comera_dist.data.tokenizer import INCOMPLETE, Tokenizer
from comera_dist.errors import ConfigError
from comera_dist.generate.merged import merge_once
from comera_dist.generate.sampling import Sampling
from comera_dist.models.base import TokenCache, WritesText
from comera_dist.run.own_tokenizer import own_tokenizer
from comera_dist.run.trained import Trained, load_trained
from comera_dist.runtime.processes import Processes


@dataclass(frozen=True)
class Writer:
    """A model that continues texts; its cores are merged."""

    model: WritesText
    tokenizer: Tokenizer
    step: int  # of the checkpoint
    seq_len: int  # tokens of the sequences in training
    form: PromptForm | None = None  # of prompts with answers, where the data have one

    def asked(self, prompt: str) -> str:
        """The text after which the model writes the answer to `prompt`. ConfigError if it learned no answers."""
        if self.form is None:
            raise ConfigError(
                "the model was trained on texts without prompts and answers; give it the beginning of a text with "
                "--prompt"
            )
        return self.form.asked(prompt)

    def samples(
        self, prompt: str, tokens: int, sampling: Sampling, seed: int, count: int = 1
    ) -> Iterator[Iterator[int]]:
        """`count` continuations of `prompt`, which is read as the beginning of a document; see `continuations`."""
        return self.continuations(
            [self.tokenizer.eos_id, *self.tokenizer.encode(prompt)], tokens, sampling, seed, count
        )

    def continuations(
        self, prompt_ids: list[int], tokens: int, sampling: Sampling, seed: int, count: int = 1
    ) -> Iterator[Iterator[int]]:
        """`count` continuations of `prompt_ids`, each of at most `tokens` ids; the last id may be EOS.

        The prompt is read once. Continuation i of a seed is the first one of seed + i. Read each to its end before the
        next. Raises ConfigError if memory cannot hold so many tokens.
        """
        capacity = len(prompt_ids) + tokens
        try:
            cache = self.model.empty_cache(capacity)
        except (RuntimeError, TypeError, OverflowError, MemoryError) as error:  # torch raises any of them for a size
            raise ConfigError(
                f"keys and values of {capacity} tokens do not fit in memory; lower --tokens or shorten the prompt"
            ) from error
        device = next(self.model.parameters()).device
        logits_V = self.model.next_logits(torch.tensor([prompt_ids], device=device), cache)[0]
        for index in range(count):
            cache.rewind(len(prompt_ids))
            generator = torch.Generator().manual_seed(seed + index)
            yield continuation(self.model, cache, logits_V, tokens, sampling, generator, self.tokenizer.eos_id)


def open_writer(run: Path, processes: Processes | None = None, step: int | None = None) -> Writer:
    """The writer of a run's newest undamaged checkpoint, or of the checkpoint at `step`.

    Raises CheckpointError, and the errors of `writer_of`.
    """
    return writer_of(load_trained(run, processes, step), run)


def writer_of(trained: Trained, run: Path) -> Writer:
    """The writer of a loaded model of `run`; merges the model's cores. Raises the errors of `tokenizer_of_run`."""
    model, tokenizer, data = trained.model, tokenizer_of_run(trained, run), trained.config.data
    assert isinstance(model, WritesText), "tokenizer_of_run refuses others"
    merge_once(trained.model)
    return Writer(model, tokenizer, trained.checkpoint.manifest["step"], data.seq_len, prompt_form(data.folders))


def tokenizer_of_run(trained: Trained, run: Path) -> Tokenizer:
    """The tokenizer of the corpus of `run`.

    Raises ConfigError if the model cannot write text, and DataError if its corpus was replaced.
    """
    if not isinstance(trained.model, WritesText):
        raise ConfigError(
            f"{run} is a run of model.kind = {trained.config.model.kind}, which writes no text; name a run of a decoder"
        )
    return own_tokenizer(trained, open_text(trained.config.data.folders[0]))


def continuation(
    model: WritesText,
    cache: TokenCache,
    logits_V: torch.Tensor,
    tokens: int,
    sampling: Sampling,
    generator: torch.Generator,
    eos_id: int,
) -> Iterator[int]:
    """At most `tokens` ids after those in `cache`, of which the last may be EOS; the first is drawn from `logits_V`."""
    for count in range(1, tokens + 1):
        token = sampling.draw(logits_V, generator)
        yield token
        if token == eos_id or count == tokens:
            return
        logits_V = model.next_logits(torch.tensor([[token]], device=logits_V.device), cache)[0]


def text_pieces(tokenizer: Tokenizer, ids: Iterable[int], before: str = "") -> Iterator[str]:
    """The text of `ids` after the text `before`, in pieces: each comes when the bytes of its last character are there.

    A piece is decoded after the one before it, because some tokenizers drop a space at the beginning of a text.
    """
    read, pending = _last_whole(tokenizer, tokenizer.encode(before)), list[int]()
    for token in ids:
        pending.append(token)
        text = _after(tokenizer, read, pending)
        if not text.endswith(INCOMPLETE):
            yield text
            read, pending = pending, []
    if pending:
        yield _after(tokenizer, read, pending)


def _last_whole(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """The fewest ids at the end of `ids` whose text begins with a whole character.

    LLaMA 2's decoder turns all bytes of a row into INCOMPLETE if its first one is inside of a character.
    """
    ends = (ids[-length:] for length in range(1, len(ids) + 1))
    return next((end for end in ends if not tokenizer.decode(end).startswith(INCOMPLETE)), ids)


def _after(tokenizer: Tokenizer, read: list[int], ids: list[int]) -> str:
    """The text that `ids` add to that of `read`."""
    return tokenizer.decode([*read, *ids])[len(tokenizer.decode(read)) :]
