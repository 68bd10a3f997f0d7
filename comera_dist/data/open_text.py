"""Opens the data of a decoder: tokenized text, or prompts and answers."""

from collections.abc import Iterable
from pathlib import Path

from comera_dist.data.answers import ANSWERS, AnswerCorpus
from comera_dist.data.data_kind import kind_of
from comera_dist.data.prompt_form import PromptForm
from comera_dist.data.shards import Corpus


def open_text(path: str | Path) -> Corpus | AnswerCorpus:
    """The data set at `path`, of the kind that its manifest names. Raises DataError."""
    return AnswerCorpus(path) if holds_answers(path) else Corpus(path)


def prompt_form(paths: Iterable[str | Path]) -> PromptForm | None:
    """The form of a prompt in the first of these data sets that holds answers; None if none does. Raises DataError."""
    return next((AnswerCorpus(path).form for path in paths if holds_answers(path)), None)


def holds_answers(path: str | Path) -> bool:
    """Whether the manifest at `path` is readable and names prompts and answers."""
    return kind_of(Path(path)) == ANSWERS
