"""Prompts and answers as the columns of a prepared data set: tokens, ends of prompts, ends of answers.

Shapes: R examples, T tokens of all examples.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from comera_dist.data.columns import Column
from comera_dist.data.prompt_form import PromptForm
from comera_dist.data.tokenizer import Tokenizer
from comera_dist.errors import DataError
from data_prep.answers.dialogues import Dialogue
from data_prep.answers.sources import EMPTY, TOO_LONG
from data_prep.files.column_folder import ColumnFolder
from data_prep.files.skips import Skips
from data_prep.files.split import SplitRule
from data_prep.text.encoding import token_dtype

_CHUNK = 1024  # chosen: examples that are written together


class Encoded(NamedTuple):
    """Token ids of an example. Both texts are encoded by themselves, as generation meets a prompt without an answer."""

    split: str
    prompt: list[int]
    answer: list[int]
    answer_bytes: int

    @property
    def length(self) -> int:
        """Places that the example takes in a row: EOS comes before it."""
        return 1 + len(self.prompt) + len(self.answer)


def answer_columns(vocab_size: int) -> dict[str, Column]:
    ends = {name: Column("<i8") for name in ("prompt_end", "answer_end")}
    return {"tokens": Column(token_dtype(vocab_size).str), **ends}


def encoded(
    dialogues: Iterable[tuple[str, Dialogue]],
    tokenizer: Tokenizer,
    form: PromptForm,
    max_tokens: int | None,
    skips: Skips,
) -> Iterator[Encoded]:
    """The examples of all dialogues. Those that take more than `max_tokens` places are counted in `skips`.

    So are those whose answer has no token: a tokenizer may drop characters, such as spaces of no width.
    """
    for split, dialogue in dialogues:
        for prompt, response in dialogue.examples(form):
            example = Encoded(split, tokenizer.encode(prompt), tokenizer.encode(response), len(response.encode()))
            if max_tokens is not None and example.length > max_tokens:
                skips.add(TOO_LONG, dialogue.where, f"{example.length} tokens, more than --max-tokens {max_tokens}")
            elif not example.answer:
                skips.add(EMPTY, dialogue.where, "an answer without tokens")
            else:
                yield example


class AnswerWriter:
    """Appends examples to the columns of their splits. `counts` and `longest` are those of what it has written."""

    def __init__(self, folder: ColumnFolder, rule: SplitRule):
        self._folder, self._rule = folder, rule
        self._tokens = dict.fromkeys(rule.splits, 0)
        self.counts = {split: {"examples": 0, "targets": 0, "bytes": 0} for split in rule.splits}
        self.longest = 0  # places of an example

    def write(self, examples: Iterable[Encoded]) -> None:
        """Writes all examples. Raises DataError if a split stays empty."""
        remaining = iter(examples)
        while chunk := list(itertools.islice(remaining, _CHUNK)):
            self.longest = max(self.longest, *(example.length for example in chunk))
            for split in self._rule.splits:
                self._append(split, [example for example in chunk if example.split == split])
        for split, counts in self.counts.items():
            if not counts["examples"]:
                found = any(others["examples"] for others in self.counts.values())
                remedy = self._rule.remedy(split) if found else "check --source and --prompt-key"
                raise DataError(f"no answer for {split} was found; {remedy}")

    def _append(self, split: str, examples: list[Encoded]) -> None:
        arrays = columns_of(examples, self._tokens[split])
        self._folder.append(split, arrays)
        self._tokens[split] += len(arrays["tokens"])
        self.counts[split]["examples"] += len(examples)
        self.counts[split]["targets"] += sum(len(example.answer) + 1 for example in examples)
        self.counts[split]["bytes"] += sum(example.answer_bytes for example in examples)


def columns_of(examples: list[Encoded], start: int) -> dict[str, NDArray[Any]]:
    """tokens (T,), prompt_end and answer_end (R,) of examples whose first token is number `start` of the split."""
    texts = [ids for example in examples for ids in (example.prompt, example.answer)]
    end_2R = start + np.cumsum([len(ids) for ids in texts], dtype=np.int64)
    tokens = np.fromiter(itertools.chain.from_iterable(texts), dtype=np.int64)
    return {"tokens": tokens, "prompt_end": end_2R[::2], "answer_end": end_2R[1::2]}
