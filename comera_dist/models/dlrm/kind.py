"""The recommendation model as a kind of model."""

from typing import TYPE_CHECKING

from comera_dist.config.tree import Config
from comera_dist.formats.plan import Plan
from comera_dist.models.base import Kind
from comera_dist.models.dlrm.plan import DLRMFacts, format_key, plan_dlrm
from comera_dist.models.dlrm.section import DLRMConfig
from comera_dist.models.work import Work

if TYPE_CHECKING:
    import torch

    from comera_dist.data.tasks import Task


class DLRMKind(Kind[DLRMFacts]):
    """A DLRM that predicts clicks. Its rows are not sequences: each counts as one unit."""

    section = DLRMConfig
    unit = "rows"
    without_data = "set model.table_rows and model.dense_features"
    free_keys = frozenset({"format", "dense_features", "table_rows"})  # may be null; the matrices are compared
    has_biases = True

    def plan(self, config: Config, facts: DLRMFacts) -> Plan:
        return plan_dlrm(config, facts)

    def build(self, section: DLRMConfig, plan: Plan, generator: "torch.Generator | None") -> "torch.nn.Module":
        from comera_dist.models.dlrm.model import DLRM

        return DLRM(plan, generator)

    def open_task(self, config: Config) -> "Task[DLRMFacts]":
        from comera_dist.models.dlrm.task import ClickPrediction

        return ClickPrediction(config)

    def format_key(self, name: str) -> str:
        return format_key(name)

    def known_facts(self, section: DLRMConfig, vocab_size: int | None) -> DLRMFacts | None:
        if section.table_rows and section.dense_features is not None:
            return DLRMFacts(section.dense_features, section.table_rows)
        return None

    def problems(self, config: Config) -> list[str]:
        problems = []
        if config.train.batch_size is None:
            problems.append("train.batch_size is not set, and the rows of a DLRM are not tokens; set it, e.g. to 2048")
        if config.train.tokens is not None:
            problems.append(f"train.tokens = {config.train.tokens} means nothing to a DLRM; set train.steps instead")
        return problems

    def row_tokens(self, config: Config) -> int:
        return 1

    def row_keys(self, config: Config) -> frozenset[str]:
        return frozenset()

    def unplanned_work(self, config: Config, plan: Plan) -> list[Work]:
        """The dot products of all vectors of a row: one vector per table, and one for all numbers."""
        vectors = sum(layer.is_embedding for layer in plan.values()) + ("bottom.0" in plan)
        return [Work("interaction", "dot products", 2 * vectors * vectors * config.model.embedding_dim)]


KIND = DLRMKind()
