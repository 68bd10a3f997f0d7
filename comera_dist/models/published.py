"""The model of the library transformers that computes the same as a model of ours. This file imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from comera_dist.data.answers import AnswerCorpus
    from comera_dist.data.pairs import PairCorpus
    from comera_dist.data.shards import Corpus


@dataclass(frozen=True)
class Published:
    """A class of transformers whose dense weights have the names of ours, and the values of its configuration.

    `family` and `task` make the names of its classes, as LlamaConfig and LlamaForCausalLM.
    """

    family: str
    task: str
    settings: dict[str, Any]  # of config.json, without the ids of special tokens
    data: Corpus | PairCorpus | AnswerCorpus  # on which the model was trained; its tokenizer is exported too
    # Weights in another order of rows: for each of theirs, ours.
    rows: dict[str, list[int]] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)  # output layers that use a table: its module name
    zeros: dict[str, int] = field(default_factory=dict)  # biases that ours lacks, and their size
    # Module names of attention whose heads have gates, which only code of ours computes.
    gated: tuple[str, ...] = ()
