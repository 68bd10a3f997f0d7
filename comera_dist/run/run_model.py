"""The model of a run with the engine around it; both change where ranks adapt."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from comera_dist.costs.estimate import Estimate
from comera_dist.formats.plan import Plan
from comera_dist.ranks.adaptation import RankAdaptation
from comera_dist.ranks.resize import Resize
from comera_dist.ranks.rebuild import rebalance, rebuild
from comera_dist.report.rank_report import adaptation_figures, layer_changes
from comera_dist.report.records import AdaptationReport
from comera_dist.run.model_source import ModelSource
from comera_dist.runtime.engine import Engine
from comera_dist.storage.run_directory import RunDirectory


@dataclass
class RunModel:
    """`planned` is the plan at step 0 of the run, `plan` the one of now, and `estimate` its figures.

    `source` builds models, `start_engine` puts an engine around one. `ranks` is None where they do not adapt.
    """

    source: ModelSource
    start_engine: Callable[[nn.Module], Engine]
    planned: Plan
    plan: Plan
    engine: Engine
    ranks: RankAdaptation | None = None

    def __post_init__(self) -> None:
        self.estimate: Estimate = self.source.estimate(self.plan)

    @property
    def stage(self) -> str:
        """The stage of rank adaptation, `fixed` without it."""
        return self.ranks.stage if self.ranks else "fixed"

    def adapt(self, step: int) -> dict | None:
        """Where a sync is due after `step` steps: resizes the model as is decided, and returns what was measured.

        Collective. Raises RankDivergence where processes disagree.
        """
        if self.ranks is None or not self.ranks.is_due(step):
            return None
        record, resize = self.ranks.sync(step)
        started = time.perf_counter()
        if resize.bonds:
            self.rebuild(resize)
            record["rebuild_seconds"] = time.perf_counter() - started
        elif resize.balanced:
            rebalance(self.engine, resize)
        self.ranks.resized(self.engine)
        return record

    def rebuild(self, resize: Resize) -> None:
        """Goes on with the ranks of `resize`. Collective."""
        self.plan = resize.plan(self.plan)
        self.estimate = self.source.estimate(self.plan)
        self.engine = rebuild(self.engine, resize, partial(self.source.build, self.plan, None), self.start_engine)

    def pressure(self, step: int) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """From the mean loss of the step after `step` steps to the weight of the gates' penalty."""
        return None if self.ranks is None else lambda loss: self.ranks.objective.pressure(loss, step)

    def adaptation(self, layers: tuple[str, ...], directory: RunDirectory) -> AdaptationReport | None:
        """What has changed since step 0 in the layers of these patterns; speeds are read from the logs of the run."""
        if self.ranks is None:
            return None
        planned, logs = self.source.estimate(self.planned), map(directory.read, ("metrics.jsonl", "ranks.jsonl"))
        figures = adaptation_figures(self.ranks.verdict(), planned, self.estimate, *logs)
        return AdaptationReport(layer_changes(self.planned, self.plan, layers), planned, self.estimate, figures)
