"""What a kind of model must bring. Its folder holds an object of `Kind`, and one line of `KINDS` names that object.

The object is imported whenever a configuration is read: its methods import what needs torch.
"""

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from comera_dist.config.model_section import ModelSection
from comera_dist.config.tree import Config
from comera_dist.formats.named import format_problems

if TYPE_CHECKING:
    import torch

    from comera_dist.data.tasks import Task
    from comera_dist.formats.plan import Plan
    from comera_dist.models.work import Work

Facts = TypeVar("Facts")  # what the plan of a kind must know about the data, e.g. the size of the vocabulary

# A kind names the modules of its blocks so, like the published checkpoints of LLaMA (layers.0.) and BERT (layer.0.).
IN_BLOCK = re.compile(r"(^|\.)layers?\.\d+\.")


class Kind(ABC, Generic[Facts]):
    """A kind of model: four methods are its own, all else has a default that suits a model of token sequences."""

    section: type[ModelSection]  # the keys of `model`
    unit = "tokens"  # in which a run counts its data
    without_data: str  # remedy where an estimate finds no data
    free_keys = frozenset({"format"})  # keys of the section in which a run may differ from the one it starts from
    logits_layer: str | None = None  # the planned layer whose logits only the loss sees, in chunks
    # Keys of `model.format` for the linear layers of transformer blocks; None where any of them may be in a block.
    block_keys: tuple[str, ...] | None = None
    has_biases = False  # whether each planned matrix that is not an embedding has a bias of `outputs` numbers

    @abstractmethod
    def plan(self, config: Config, facts: Facts) -> "Plan":
        """How each matrix is stored, by module name, in the order in which weights are drawn. Raises ConfigError."""

    @abstractmethod
    def build(self, section: Any, plan: "Plan", generator: "torch.Generator | None") -> "torch.nn.Module":
        """The model of a plan, with weights drawn from `generator`, or left for the caller to load where it is None.

        forward takes a batch of the task and returns the summed loss in nats; `measure` takes one and returns sums, or
        vectors over rows, by name, the `loss` among them. The attribute `plan` is the plan.
        """

    @abstractmethod
    def open_task(self, config: Config) -> "Task[Facts]":
        """The task of the model on `config.data`. Raises ConfigError and DataError."""

    @abstractmethod
    def format_key(self, name: str) -> str:
        """The key of `model.format` that says how the layer `name` is stored."""

    def known_facts(self, section: Any, vocab_size: int | None) -> Facts | None:
        """Facts by the configuration, or `vocab_size`, alone; None where only the data can tell."""
        return None

    def problems(self, config: Config) -> list[str]:
        """One sentence for each combination of values that cannot be."""
        return []

    def format_problems(self, config: Config) -> list[str]:
        """One sentence for each capability that `config` needs and that none of its formats has."""
        return format_problems(config)

    def row_tokens(self, config: Config) -> int:
        """Tokens (units) of one row of a batch."""
        return config.data.seq_len

    def row_keys(self, config: Config) -> frozenset[str]:
        """Keys of `data`, besides the corpus, on which the content of a row depends."""
        return frozenset({"seq_len"})

    def other_parts(self, section: Any) -> dict[str, int]:
        """Stored numbers of the model by part, without planned matrices and their biases."""
        return {}

    def token_share(self, config: Config, name: str) -> float:
        """The share of all tokens for which the layer `name` runs."""
        return 1.0

    def unplanned_work(self, config: Config, plan: "Plan") -> "list[Work]":
        """Work of a forward pass that belongs to no planned matrix, e.g. attention."""
        return []


class TokenCache(Protocol):
    """Tokens that a model has read, in a form that makes the next one cheap."""

    def rewind(self, length: int) -> None:
        """Forgets all but the first `length` tokens."""


@runtime_checkable
class WritesText(Protocol):
    """A kind whose model continues texts: it has `next_logits(tokens_BS, cache)`, logits (B, V) of the next token."""

    def empty_cache(self, section: Any, capacity: int, device: "torch.device") -> TokenCache:
        """Room for `capacity` tokens. RuntimeError, TypeError, OverflowError or MemoryError where memory lacks it."""
