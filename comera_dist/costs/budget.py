"""Plans a model within `tensor.budget`."""

from typing import Any

from comera_dist.config.tensor_section import Budget
from comera_dist.config.tree import Config
from comera_dist.costs.estimate import Estimate, estimate
from comera_dist.errors import ConfigError
from comera_dist.formats.named import CHOOSES
from comera_dist.formats.plan import Plan
from comera_dist.models.family import plan_model

STEP = 0.98  # ratio of one tried share to the one before it; chosen: at most 2 % of a budget stay unused for want of it
SHARES = tuple(STEP**power for power in range(500))  # down to 1 / 24,000, where all matrices have rank 1


def plan_within_budget(config: Config, facts: Any, num_processes: int = 1, device_type: str = "cpu") -> Plan:
    """The plan of a run's model, with the largest share for matrices of the format `auto` that meets `tensor.budget`.

    Raises ConfigError if no share does.
    """
    budget = config.tensor.budget
    if budget == Budget():
        return plan_model(config, facts)
    tokens = config.tokens_per_forward(num_processes)
    for share in SHARES:
        plan = plan_model(_with_share(config, share), facts)
        costs = estimate(config, plan, num_processes, tokens, device_type)
        above = excess(budget, costs)
        if not above:
            return plan
    key, least, allowed = above[0]
    raise ConfigError(
        f"tensor.budget.{key} = {allowed:,.0f} is not possible: the smallest model of this shape needs {least:,.0f}; "
        f"raise it, or lower the width or the number of layers"
    )


def excess(budget: Budget, costs: Estimate) -> list[tuple[str, float, float]]:
    """Key, cost and limit of each cost above its limit."""
    found = {
        "parameters": costs.params,
        "flops_per_token": costs.flops_per_token,
        "state_bytes": costs.state_bytes_per_process,
    }
    limits = {key: limit for key, limit in budget if limit is not None}
    return [(key, found[key], limit) for key, limit in limits.items() if found[key] > limit]


def _with_share(config: Config, share: float) -> Config:
    options = config.tensor.options_of(CHOOSES).model_copy(update={"share": share})
    return config.model_copy(update={"tensor": config.tensor.with_options(CHOOSES, options)})
