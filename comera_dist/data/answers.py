"""Prepared prompts and answers as packed rows of one length, whose targets are the tokens of answers alone.

An example is a document: EOS, the prompt in its form, the answer. Targets lie one place later, so the last one is EOS.
A row holds as many whole examples as fit, in the order of the data, and EOS without targets after them. It is a row as
a pretrained decoder reads it with data.documents=separate, and generation begins in the same way.

Shapes: B rows of a batch, S tokens of a row, R examples, T tokens of all examples.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from comera_dist.data.batches import FILLER
from comera_dist.data.columns import ColumnSet
from comera_dist.data.documents import PackedBatch, document_starts
from comera_dist.data.manifest import AnswersManifest
from comera_dist.data.open_tokenizer import tokenizer_file
from comera_dist.data.prompt_form import PromptForm
from comera_dist.errors import DataError
from comera_dist.ops.targets import IGNORED_TARGET

ANSWERS = "answers"  # `kind` of the manifest


class AnswerCorpus(ColumnSet):
    """Prompts and answers that data_prep/prepare_answers.py made.

    The columns of a split are `tokens` (all texts, flat), `prompt_end` and `answer_end` (places in it).
    """

    specials = 0  # ids before those of the tokenizer

    def __init__(self, path: str | Path):
        super().__init__(path, ANSWERS)
        record = self._described_by(AnswersManifest)
        self.vocab_size, self.eos_id, self.counts = record.vocab_size, record.eos_id, record.counts
        self.form = PromptForm(record.template)
        self.tokenizer_path = self.path / tokenizer_file(self.manifest.get("tokenizer"))
        for split in self.splits:
            self._check_complete(split)
            if split not in self.counts:
                raise self._misdescribed(f"counts.{split} is missing")

    def ends(self, split: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The places in `tokens` at which the prompt and the answer of each example end, (R,) each.

        Raises DataError unless each example has an answer and follows the one before it.
        """
        columns = self.split(split)
        prompt_R, answer_R = np.array(columns["prompt_end"]), np.array(columns["answer_end"])
        if not len(answer_R) or len(prompt_R) != len(answer_R):
            found = f"{len(prompt_R)} prompts and {len(answer_R)} answers"
            raise DataError(f"split {split!r} of {self.path} has {found}, expected as many of both; {self._remedy}")
        start_R = np.concatenate([[0], answer_R[:-1]])
        wrong_R = (start_R > prompt_R) | (prompt_R >= answer_R) | (answer_R > len(columns["tokens"]))
        if wrong_R.any():
            row = int(np.flatnonzero(wrong_R)[0])
            raise DataError(
                f"{self.path} ends prompt and answer of example {row} at {prompt_R[row]} and {answer_R[row]}, expected "
                f"growing places within {len(columns['tokens'])} tokens; {self._remedy}"
            )
        return prompt_R, answer_R


class Example(NamedTuple):
    """Places in the tokens of a split."""

    start: int
    prompt_end: int
    answer_end: int


class PackedAnswers:
    """The examples of one split, packed into rows. Raises DataError if one is longer than a row."""

    def __init__(self, corpus: AnswerCorpus, name: str, seq_len: int):
        self._corpus, self._name, self._seq_len = corpus, name, seq_len
        self._prompt_R, self._answer_R = corpus.ends(name)
        self._start_R = np.concatenate([[0], self._answer_R[:-1]])
        length_R = self._answer_R - self._start_R + 1  # EOS is an input before each example
        if (too_long := int((length_R > seq_len).sum())) > 0:
            raise DataError(
                f"{too_long} of {len(length_R)} examples of {corpus.path} are longer than data.seq_len = {seq_len}, "
                f"the longest takes {length_R.max()} tokens; raise data.seq_len, or prepare the data again with "
                f"--max-tokens {seq_len}"
            )
        self._first = first_examples(length_R, seq_len)

    def __len__(self) -> int:
        return len(self._first) - 1

    def examples(self, row: int) -> list[Example]:
        """The examples of a row; none for FILLER."""
        if row == FILLER:
            return []
        part = slice(self._first[row], self._first[row + 1])
        return [Example(*map(int, places)) for places in zip(*(c[part] for c in self._columns), strict=True)]

    def batch(self, row_B: NDArray[np.int64], draw_B: NDArray[np.int64]) -> PackedBatch:
        """The rows `row_B`; nothing in them is random. A row FILLER has no target."""
        self._corpus.check_sizes(self._name)
        tokens_T, shape = self._corpus.split(self._name)["tokens"], (len(row_B), self._seq_len)
        inputs_BS = np.full(shape, self._corpus.eos_id, dtype=np.int64)
        targets_BS = np.full(shape, IGNORED_TARGET, dtype=np.int64)
        for row, number in enumerate(row_B.tolist()):
            place = 0
            for start, prompt_end, answer_end in self.examples(number):
                end = place + answer_end - start
                inputs_BS[row, place + 1 : end + 1] = tokens_T[start:answer_end]
                targets_BS[row, place + prompt_end - start : end] = tokens_T[prompt_end:answer_end]
                targets_BS[row, end] = self._corpus.eos_id
                place = end + 1
        self._corpus.check_below("token", int(inputs_BS.max()), self._corpus.vocab_size)
        inputs = torch.from_numpy(inputs_BS)
        starts = document_starts(inputs, self._corpus.eos_id)
        return PackedBatch(inputs, starts, torch.from_numpy(targets_BS))

    @property
    def _columns(self) -> tuple[NDArray[np.int64], ...]:
        return self._start_R, self._prompt_R, self._answer_R


def first_examples(length_R: NDArray[np.int64], seq_len: int) -> list[int]:
    """The first example of each row, and last the number of examples; each is at most `seq_len` long."""
    end_R = np.cumsum(length_R)
    first, before = [0], 0
    while first[-1] < len(end_R):
        first.append(int(np.searchsorted(end_R, before + seq_len, side="right")))
        before = int(end_R[first[-1] - 1])
    return first
