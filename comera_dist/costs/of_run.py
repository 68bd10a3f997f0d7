"""Costs of the run that a configuration describes."""

from typing import Any

from comera_dist.config.tree import Config
from comera_dist.costs.budget import plan_within_budget
from comera_dist.costs.estimate import Estimate
from comera_dist.costs.estimate import estimate as estimate_plan
from comera_dist.data.tasks import open_task
from comera_dist.errors import DataError
from comera_dist.formats.plan import Plan
from comera_dist.models.family import kind_of, known_facts


def plan_run(config: Config, vocab_size: int | None = None, num_processes: int = 1, device_type: str = "cpu") -> Plan:
    """The plan of a run's model; with `vocab_size` it needs no corpus of text. Raises ConfigError and DataError."""
    return plan_within_budget(config, facts_of(config, vocab_size), num_processes, device_type)


def estimate(
    config: Config, num_processes: int = 1, vocab_size: int | None = None, device_type: str = "cpu"
) -> Estimate:
    """Sizes, FLOPs, memory and traffic of a run before it starts. Raises ConfigError and DataError."""
    plan = plan_run(config, vocab_size, num_processes, device_type)
    return estimate_plan(config, plan, num_processes, config.tokens_per_forward(num_processes), device_type)


def facts_of(config: Config, vocab_size: int | None = None) -> Any:
    """Facts about the data: from the arguments if they suffice, otherwise from the data. Raises DataError."""
    known = known_facts(config, vocab_size)
    if known is not None:
        return known
    try:
        return open_task(config).facts
    except DataError as error:
        without = kind_of(config.model).without_data
        raise DataError(f"{str(error).rstrip('.')}; or estimate without data: {without}") from error
