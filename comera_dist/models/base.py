"""The interface of a kind of model. Each kind's folder holds an object of `Kind`, which one line of `KINDS` names.

Reading a configuration imports this object, so methods import torch and modules that need torch in their bodies.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from comera_dist.config.model_section import ModelSection
from comera_dist.config.tree import Config
from comera_dist.formats.named import format_problems
from comera_dist.formats.plan import Plan
from comera_dist.models.adopted import Settings
from comera_dist.models.work import Work

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from comera_dist.data.tasks import Task
    from comera_dist.models.published import Published

Facts = TypeVar("Facts")  # facts about the data that a kind's plan needs, e.g. the size of the vocabulary

# Matches names of modules in blocks: kinds name blocks as LLaMA's (layers.0.) or BERT's (layer.0.) checkpoints do.
IN_BLOCK = re.compile(r"(^|\.)layers?\.\d+\.")


class Kind(ABC, Generic[Facts]):
    """A kind of model. Four methods are abstract; the defaults of all others suit a model of token sequences."""

    section: type[ModelSection]  # the keys of `model`
    unit = "tokens"  # a run counts its data in this unit
    without_data: str  # remedy in the error of an estimate that finds no data
    free_keys = frozenset({"format"})  # keys of `model` that `run.start_from` does not compare between two runs
    logits_layer: str | None = None  # planned layer whose logits the loss computes in chunks, never all at once
    # Keys of `model.format` for the linear layers of transformer blocks; None where any of them may be in a block.
    block_keys: tuple[str, ...] | None = None
    recomputes_blocks = False  # whether its modules have CheckpointedBlocks, as train.activation_checkpointing needs
    learns_from_teachers = False  # whether its modules have `learn_from`, as train.teacher needs
    adopts: tuple[str, ...] = ()  # values of model_type of the models of transformers that `adopted` reads
    has_biases = False  # whether each planned matrix that is not an embedding has a bias of `outputs` numbers

    @abstractmethod
    def plan(self, config: Config, facts: Facts) -> Plan:
        """The plan of each matrix by module name, in the order in which weights are drawn. Raises ConfigError."""

    @abstractmethod
    def build(self, section: Any, plan: Plan, generator: "torch.Generator | None") -> "nn.Module":
        """The module of a plan, with weights drawn from `generator`; without one the caller must load them.

        `forward` takes a batch of the task and returns the summed loss in nats. `measure` takes a batch and returns
        sums, or vectors over rows, by name, including `loss`. The attribute `plan` is the plan.
        """

    @abstractmethod
    def open_task(self, config: Config) -> "Task[Facts]":
        """The task of the model on `config.data`. Raises ConfigError and DataError."""

    @abstractmethod
    def format_key(self, name: str) -> str:
        """The key of `model.format` that sets the format of the layer `name`."""

    def known_facts(self, section: Any, vocab_size: int | None) -> Facts | None:
        """Facts that follow from the configuration or `vocab_size`; None if only the data can tell."""
        return None

    def problems(self, config: Config) -> list[str]:
        """One sentence for each impossible combination of values."""
        return []

    def idle_keys(self, config: Config) -> dict[str, str]:
        """A sentence for each key of `model` that differs from its default and has no effect beside the others."""
        return {}

    def format_problems(self, config: Config) -> list[str]:
        """One sentence for each capability that `config` needs and that none of its formats has."""
        return format_problems(config)

    def blank_batch(self, config: Config, rows: int) -> "tuple[Tensor, ...] | None":
        """Tensors of any content in the shapes of a batch of `rows` rows; None leaves activations out of estimates."""
        return None

    def row_tokens(self, config: Config) -> int:
        """Tokens (units) of one row of a batch."""
        return config.data.seq_len

    def row_keys(self, config: Config) -> frozenset[str]:
        """Keys of `data`, apart from the corpus, that determine the content of a row."""
        return frozenset({"seq_len"})

    def other_parts(self, section: Any, plan: Plan) -> dict[str, int]:
        """Stored numbers by part of the model, without planned matrices and their biases."""
        return {}

    def token_share(self, config: Config, name: str) -> float:
        """The share of all tokens that pass through the layer `name`."""
        return 1.0

    def unplanned_work(self, config: Config, plan: Plan) -> list[Work]:
        """Work of a forward pass outside of planned matrices, e.g. attention."""
        return []

    def published(self, config: Config, plan: Plan) -> "Published | None":
        """The model of transformers that computes the same; None if the kind has none.

        ConfigError if it has none with this configuration, DataError if the data are gone.
        """
        return None

    def adopted(self, settings: Settings) -> dict[str, Any]:
        """The keys of `model`, but its kind, that compute a model of transformers whose config.json is `settings`.

        Its model_type is one of `adopts`. Raises ConfigError if our model computes something else.
        """
        raise NotImplementedError

    def adopted_rows(self, config: Config, plan: Plan, settings: Settings) -> dict[str, Sequence[int]]:
        """For each parameter whose rows the adopted model has in another order: its row for each of ours.

        Raises ConfigError and DataError if the data of `config` do not fit the model.
        """
        return {}


@runtime_checkable
class ScoresRows(Protocol):
    """A module that judges rows. Shapes: B rows, C columns of probabilities."""

    def probabilities(self, *inputs: "Tensor") -> "Tensor":
        """Probabilities (B, C, float64) of the rows of a batch without its targets: of each class, or of a click."""


class TokenCache(Protocol):
    """The tokens that a model has read, stored so that the next one is cheap."""

    def rewind(self, length: int) -> None:
        """Removes all but the first `length` tokens."""


@runtime_checkable
class WritesText(Protocol):
    """A module that continues texts. Shapes: B batch, S sequence, V vocabulary."""

    def empty_cache(self, capacity: int) -> TokenCache:
        """A cache for `capacity` tokens of one text.

        Raises RuntimeError, TypeError, OverflowError or MemoryError if memory cannot hold it.
        """

    def next_logits(self, tokens_BS: "Tensor", cache: Any) -> "Tensor":
        """Logits (B, V) of the token after those in `cache` and `tokens_BS`, which are added to it.

        `cache` is a result of `empty_cache`. An empty one takes any number of tokens, a filled one a single token.
        """

    def parameters(self) -> "Iterator[nn.Parameter]": ...
