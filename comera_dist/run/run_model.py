"""The model of a run: where it comes from, the engine around it, and how both change when ranks adapt."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from comera_dist.config.tree import Config
from comera_dist.costs.budget import plan_within_budget
from comera_dist.costs.estimate import Estimate, estimate, with_teacher
from comera_dist.costs.module_estimate import estimate_module
from comera_dist.data.mixture import Mixture
from comera_dist.data.tasks import Task
from comera_dist.errors import ConfigError
from comera_dist.formats.plan import Plan
from comera_dist.models.family import build_model
from comera_dist.models.tensor_remarks import tensor_remarks
from comera_dist.ranks.adaptation import RankAdaptation
from comera_dist.ranks.rebuild import rebalance, rebuild
from comera_dist.ranks.resize import Resize
from comera_dist.report.rank_report import adaptation_figures, layer_changes
from comera_dist.report.records import AdaptationReport
from comera_dist.run.teacher import teach
from comera_dist.run.train import ModelFactory, Parts
from comera_dist.run.trained import Trained
from comera_dist.runtime.engine import Engine
from comera_dist.runtime.module_checks import check_measures
from comera_dist.runtime.processes import Processes
from comera_dist.storage.run_directory import RunDirectory


class ModelSource:
    """The model that the configuration describes. `factory` builds it (default: models.family.build_model)."""

    teacher: Trained | None = None  # every model that is built learns from it

    def __init__(self, config: Config, processes: Processes, factory: ModelFactory | None = None):
        self._config, self._processes = config, processes
        self._factory = factory or partial(build_model, config.model)

    def plan(self, task: Task[Any] | Mixture) -> Plan:
        processes = self._processes
        return plan_within_budget(self._config, task.facts, processes.count, processes.device.type)

    def tensor_remarks(self, task: Task[Any] | Mixture) -> list[str]:
        """Sentences on keys of `tensor` that change no matrix, and on ranks that all matrices clip."""
        return tensor_remarks(self._config, task.facts)

    def build(self, plan: Plan, generator: torch.Generator | None) -> nn.Module:
        """The model of `plan`: weights drawn from `generator`, or of any content if that is None.

        ConfigError for a module of the caller's that measures nothing.
        """
        model = self._factory(plan, generator)
        check_measures(model)
        if self.teacher is not None:
            teach(model, self.teacher, self._config)
        return model

    def estimate(self, plan: Plan) -> Estimate:
        own = self._estimate_of(self._config, plan)
        if self.teacher is None:
            return own
        as_here = self._config.model_copy(update={"model": self.teacher.config.model})  # rows of as many tokens
        return with_teacher(own, self._estimate_of(as_here, self.teacher.plan))

    def _estimate_of(self, config: Config, plan: Plan) -> Estimate:
        processes = self._processes
        tokens = config.tokens_per_forward(processes.count)
        return estimate(config, plan, processes.count, tokens, processes.device.type)


class GivenModel(ModelSource):
    """A module of the caller's. Its plan is empty, so none of its layers adapts."""

    def __init__(self, config: Config, processes: Processes, module: nn.Module):
        super().__init__(config, processes, lambda plan, generator: module)
        # Made now, because ZeRO stage 3 partitions the parameters.
        self._estimate = estimate_module(module, config, processes.count)

    def plan(self, task: Task[Any] | Mixture) -> Plan:
        return {}

    def tensor_remarks(self, task: Task[Any] | Mixture) -> list[str]:
        return []

    def estimate(self, plan: Plan) -> Estimate:
        return self._estimate


def model_source(config: Config, parts: Parts, processes: Processes) -> ModelSource:
    """The source of the configured model or of the caller's. ConfigError if its ranks must adapt, or it must learn from
    a teacher, and the parts cannot.
    """
    if config.train.teacher.run is not None and parts.model is not None:
        raise ConfigError(
            f"train.teacher.run = {config.train.teacher.run} and the model was handed in, but only the configured "
            f"model learns from a teacher; hand in none, or remove train.teacher"
        )
    if config.ranks.adapt and parts.optimizer is not None:
        raise ConfigError(
            "ranks.adapt = true and an optimizer was handed in, but only the configured AdamW presses on gates; hand "
            "in none, or set ranks.adapt=false"
        )
    if not isinstance(parts.model, nn.Module):
        return ModelSource(config, processes, parts.model)
    if config.ranks.adapt:
        raise ConfigError(
            "ranks.adapt = true and the model was handed in as a module, which cannot be rebuilt with other ranks; "
            "hand in a function that builds the module of a plan, or set ranks.adapt=false"
        )
    return GivenModel(config, processes, parts.model)


@dataclass
class RunModel:
    """`planned` is the plan at step 0 of the run, `plan` the present one, and `estimate` its figures.

    `start_engine` puts an engine around a model of `source`. `ranks` is None if they do not adapt.
    """

    source: ModelSource
    start_engine: Callable[[nn.Module], Engine]
    planned: Plan
    plan: Plan
    engine: Engine
    ranks: RankAdaptation | None = None

    def __post_init__(self) -> None:
        self.estimate = self.source.estimate(self.plan)

    @property
    def stage(self) -> str:
        """The stage of rank adaptation, `fixed` without it."""
        return self.ranks.stage if self.ranks else "fixed"

    def adapt(self, step: int) -> dict[str, Any] | None:
        """If a sync is due after `step` steps: carries its decision out and returns its record. Collective.

        Raises RankDivergence if processes disagree.
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
        """Rebuilds model and engine with the ranks of `resize`. Collective."""
        self.plan = resize.plan(self.plan)
        self.estimate = self.source.estimate(self.plan)
        self.engine = rebuild(self.engine, resize, partial(self.source.build, self.plan, None), self.start_engine)

    def pressure(self, step: int) -> Callable[[Tensor], Tensor] | None:
        """The function from the mean loss at `step` (from 0) to the weight of the gates' penalty."""
        return partial(self.ranks.objective.pressure, step=step) if self.ranks else None

    def adaptation(self, layers: tuple[str, ...], directory: RunDirectory) -> AdaptationReport | None:
        """The changes since step 0 in the layers that match these patterns; speeds come from the logs of the run."""
        if self.ranks is None:
            return None
        planned, logs = self.source.estimate(self.planned), map(directory.read, ("metrics.jsonl", "ranks.jsonl"))
        figures = adaptation_figures(self.ranks.verdict(), planned, self.estimate, *logs)
        return AdaptationReport(layer_changes(self.planned, self.plan, layers), planned, self.estimate, figures)
