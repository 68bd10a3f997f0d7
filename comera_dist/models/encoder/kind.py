"""The encoder as a kind of model. Its head decides about the output, the task and the places that are read."""

from typing import TYPE_CHECKING

from comera_dist.config.tree import Config
from comera_dist.formats.plan import Plan
from comera_dist.models.base import Kind
from comera_dist.models.encoder.checks import encoder_problems
from comera_dist.models.encoder.costs import encoder_work, norm_weights, token_share
from comera_dist.models.encoder.heads import HEADS
from comera_dist.models.encoder.plan import EncoderFacts, format_key, plan_encoder
from comera_dist.models.encoder.section import EncoderConfig
from comera_dist.models.work import Work

if TYPE_CHECKING:
    import torch

    from comera_dist.data.tasks import Task


class EncoderKind(Kind[EncoderFacts]):
    """A BERT-style encoder of pairs of texts."""

    section = EncoderConfig
    without_data = "give --vocab-size, and model.classes where model.head = classification"
    # Dropout acts in training only; the data may give both sizes, and matrices are compared by themselves.
    free_keys = frozenset({"format", "dropout", "vocab_size", "classes"})
    block_keys = ("attention", "mlp")
    has_biases = True

    def plan(self, config: Config, facts: EncoderFacts) -> Plan:
        return plan_encoder(config, facts.vocab_size, facts.classes)

    def build(self, section: EncoderConfig, plan: Plan, generator: "torch.Generator | None") -> "torch.nn.Module":
        return HEADS[section.head].build(section, plan, generator)

    def open_task(self, config: Config) -> "Task[EncoderFacts]":
        return HEADS[config.model.head].open_task(config)

    def format_key(self, name: str) -> str:
        return format_key(name)

    def known_facts(self, section: EncoderConfig, vocab_size: int | None) -> EncoderFacts | None:
        vocab_size = vocab_size or section.vocab_size
        if not vocab_size or (HEADS[section.head].needs_classes and not section.classes):
            return None
        return EncoderFacts(vocab_size, section.classes or 0)

    def problems(self, config: Config) -> list[str]:
        return encoder_problems(config)

    def row_keys(self, config: Config) -> frozenset[str]:
        return HEADS[config.model.head].row_keys

    def other_parts(self, section: EncoderConfig) -> dict[str, int]:
        norms = norm_weights(section)
        return {"norms: weights": norms, "norms: biases": norms}

    def token_share(self, config: Config, name: str) -> float:
        return token_share(config, name)

    def unplanned_work(self, config: Config, plan: Plan) -> list[Work]:
        return encoder_work(config, plan)


KIND = EncoderKind()
