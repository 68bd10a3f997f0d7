"""The heads of an encoder: an output with the task that trains it."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from comera_dist.config.tree import Config, Data, masked_places
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.plan import Plan, plan_linear
from comera_dist.models.encoder.section import EncoderConfig

if TYPE_CHECKING:
    import torch

    from comera_dist.data.tasks import Task
    from comera_dist.models.encoder.classification import EncoderForClassification
    from comera_dist.models.encoder.masked_lm import EncoderForMaskedLM
    from comera_dist.models.encoder.plan import EncoderFacts
    from comera_dist.models.encoder.task import Classification, MaskedLanguageModelling


class Head(ABC):
    """What a head brings: its matrices, its model, its task, and how many places of a row it reads."""

    row_keys: frozenset[str]  # keys of `data`, besides the corpus, on which the content of a row depends
    needs_classes = False
    norms = 0  # LayerNorms of the head
    is_tied = False  # whether its last product is with the word embedding

    @abstractmethod
    def plan(self, config: Config, classes: int) -> Plan:
        """The matrices of the head by module name."""

    @abstractmethod
    def build(self, section: EncoderConfig, plan: Plan, generator: "torch.Generator | None") -> "torch.nn.Module":
        """The whole encoder with this head, as `Kind.build` says."""

    @abstractmethod
    def open_task(self, config: Config) -> "Task[EncoderFacts]":
        """The task that trains it. Raises ConfigError and DataError."""

    @abstractmethod
    def places(self, data: Data) -> int:
        """Places of a row that the head reads."""


class MaskedLMHead(Head):
    """Predicts the hidden tokens of a row; the output is the word embedding itself."""

    row_keys = frozenset({"seq_len", "masked_fraction"})
    norms = 1
    is_tied = True

    def plan(self, config: Config, classes: int) -> Plan:
        return _square_layer(config, "cls.predictions.transform.dense")

    def build(self, section: EncoderConfig, plan: Plan, generator: "torch.Generator | None") -> "EncoderForMaskedLM":
        from comera_dist.models.encoder.masked_lm import EncoderForMaskedLM

        return EncoderForMaskedLM(section, plan, generator)

    def open_task(self, config: Config) -> "MaskedLanguageModelling":
        from comera_dist.models.encoder.task import MaskedLanguageModelling

        return MaskedLanguageModelling(config)

    def places(self, data: Data) -> int:
        return masked_places(data.seq_len, data.masked_fraction)


class ClassificationHead(Head):
    """Classifies a row by its first token; the output is always dense."""

    row_keys = frozenset({"seq_len"})
    needs_classes = True

    def plan(self, config: Config, classes: int) -> Plan:
        pooler = _square_layer(config, "bert.pooler.dense")
        return pooler | {"classifier": DensePlan(config.model.d_model, classes)}

    def build(
        self, section: EncoderConfig, plan: Plan, generator: "torch.Generator | None"
    ) -> "EncoderForClassification":
        from comera_dist.models.encoder.classification import EncoderForClassification

        return EncoderForClassification(section, plan, generator)

    def open_task(self, config: Config) -> "Classification":
        from comera_dist.models.encoder.task import Classification

        return Classification(config)

    def places(self, data: Data) -> int:
        return 1


HEADS: dict[str, Head] = {"masked_lm": MaskedLMHead(), "classification": ClassificationHead()}


def _square_layer(config: Config, name: str) -> Plan:
    width = config.model.d_model
    return {name: plan_linear(config, name, config.model.format.head, width, width)}
