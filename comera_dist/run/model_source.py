"""Where the model of a run comes from: a plan, or the caller."""

from typing import Protocol

import torch
from torch import nn

from comera_dist.config.tree import Config
from comera_dist.costs.estimate import Estimate, estimate
from comera_dist.costs.module_estimate import estimate_module
from comera_dist.data.tasks import Task
from comera_dist.errors import ConfigError
from comera_dist.formats.plan import Plan
from comera_dist.models.family import build_model, plan_model
from comera_dist.run.parts import ModelFactory, Parts
from comera_dist.runtime.processes import Processes


class ModelSource(Protocol):
    """Plans the model of a run, builds it, and says what it costs."""

    def plan(self, task: Task) -> Plan: ...

    def build(self, plan: Plan, generator: torch.Generator | None) -> nn.Module:
        """The model of `plan`: weights drawn from `generator`, or left for the caller to load where it is None."""

    def estimate(self, plan: Plan) -> Estimate: ...


def model_source(config: Config, parts: Parts, processes: Processes) -> ModelSource:
    """Raises ConfigError where ranks shall adapt and the parts that were handed in cannot."""
    if config.ranks.adapt and parts.optimizer is not None:
        raise ConfigError(
            "ranks.adapt = true and an optimizer was handed in, but only the configured AdamW presses on gates; hand "
            "in none, or set ranks.adapt=false"
        )
    if isinstance(parts.model, nn.Module):
        if config.ranks.adapt:
            raise ConfigError(
                "ranks.adapt = true and the model was handed in as a module, which cannot be rebuilt with other ranks; "
                "hand in a function that builds the module of a plan, or set ranks.adapt=false"
            )
        return GivenModel(config, parts.model, processes)
    return PlannedModel(config, processes, parts.model)


class PlannedModel:
    """The model that the configuration describes, built by `build` (default: by `build_model`)."""

    def __init__(self, config: Config, processes: Processes, build: ModelFactory | None = None):
        self._config, self._processes, self._build = config, processes, build

    def plan(self, task: Task) -> Plan:
        return plan_model(self._config, task.facts)

    def build(self, plan: Plan, generator: torch.Generator | None) -> nn.Module:
        if self._build is not None:
            return self._build(plan, generator)
        return build_model(self._config.model, plan, generator)

    def estimate(self, plan: Plan) -> Estimate:
        config, processes = self._config, self._processes
        tokens = config.tokens_per_forward(processes.count)
        return estimate(config, plan, processes.count, tokens, processes.device.type)


class GivenModel:
    """A module of the caller's. Its plan is empty: nothing of it is planned, so nothing of it is adapted."""

    def __init__(self, config: Config, module: nn.Module, processes: Processes):
        self._module = module
        # Now, because ZeRO stage 3 takes the parameters apart.
        self._estimate = estimate_module(module, config.train.zero_stage, processes.count)

    def plan(self, task: Task) -> Plan:
        return {}

    def build(self, plan: Plan, generator: torch.Generator | None) -> nn.Module:
        return self._module

    def estimate(self, plan: Plan) -> Estimate:
        return self._estimate
