"""The recommendation model as a kind of model."""

from typing import TYPE_CHECKING

from comera_dist.config.tree import Config
from comera_dist.formats.plan import Plan
from comera_dist.models.base import Kind
from comera_dist.models.dlrm.checks import dlrm_problems
from comera_dist.models.dlrm.costs import interaction
from comera_dist.models.dlrm.plan import DLRMFacts, format_key, plan_dlrm
from comera_dist.models.dlrm.section import DLRMConfig
from comera_dist.models.work import Work

if TYPE_CHECKING:
    import torch

    from comera_dist.models.dlrm.model import DLRM
    from comera_dist.models.dlrm.task import ClickPrediction


class DLRMKind(Kind[DLRMFacts]):
    """A DLRM that predicts clicks. Its rows are no sequences: each counts 1, and runs count rows."""

    section = DLRMConfig
    unit = "rows"
    without_data = "set model.table_rows and model.dense_features"
    free_keys = frozenset({"format", "dense_features", "table_rows"})  # the data may say the latter, and matrices do
    block_keys = ()
    has_biases = True

    def plan(self, config: Config, facts: DLRMFacts) -> Plan:
        return plan_dlrm(config, facts)

    def build(self, section: DLRMConfig, plan: Plan, generator: "torch.Generator | None") -> "DLRM":
        from comera_dist.models.dlrm.model import DLRM

        return DLRM(section, plan, generator)

    def open_task(self, config: Config) -> "ClickPrediction":
        from comera_dist.models.dlrm.task import ClickPrediction

        return ClickPrediction(config)

    def format_key(self, name: str) -> str:
        return format_key(name)

    def known_facts(self, section: DLRMConfig, vocab_size: int | None) -> DLRMFacts | None:
        if section.table_rows and section.dense_features is not None:
            return DLRMFacts(section.dense_features, section.table_rows)
        return None

    def problems(self, config: Config) -> list[str]:
        return dlrm_problems(config)

    def row_tokens(self, config: Config) -> int:
        return 1

    def row_keys(self, config: Config) -> frozenset[str]:
        return frozenset()

    def unplanned_work(self, config: Config, plan: Plan) -> list[Work]:
        return [interaction(config.model, plan)]


KIND = DLRMKind()
