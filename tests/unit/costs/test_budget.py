"""A model within a budget, against all shares one by one."""

from functools import cache

import pytest
from support import FACTS, TINY, WORKLOADS

from comera_dist.config.reader import read_config
from comera_dist.costs.budget import SHARES, plan_within_budget
from comera_dist.costs.estimate import estimate
from comera_dist.errors import ConfigError
from comera_dist.formats.auto import AutoOptions
from comera_dist.formats.plan import read_plan, write_plan
from comera_dist.models.family import plan_model

COSTS = {"parameters": "params", "flops_per_token": "flops_per_token", "state_bytes": "state_bytes_per_process"}
AUTO = [*TINY, "model.format=auto", "model.d_model=32", "model.d_ff=80", "train.zero_stage=1"]
BASE = read_config(None, AUTO)


@cache
def planned(share):
    options = AutoOptions(share=share)
    config = BASE.model_copy(update={"tensor": BASE.tensor.with_options("auto", options)})
    return plan_model(config, FACTS)


def cost(plan, key):
    return getattr(estimate(BASE, plan, 1, BASE.tokens_per_forward(1)), COSTS[key])


@pytest.mark.parametrize("key", COSTS)
@pytest.mark.parametrize("part", [0.999, 0.7, 0.4, 0.3])
def test_the_largest_share_within_the_budget_is_taken(key, part):
    budget = part * cost(planned(1), key)
    config = read_config(None, [*AUTO, f"tensor.budget.{key}={int(budget)}"])
    found = plan_within_budget(config, FACTS)
    largest = next(share for share in SHARES if cost(planned(share), key) <= int(budget))
    assert found == planned(largest)
    assert cost(found, key) <= budget < cost(planned(1), key)
    assert read_plan(write_plan(found)) == found


def test_all_given_limits_hold():
    most = {key: 0.5 * cost(planned(1), key) for key in COSTS}
    most["state_bytes"] *= 0.7
    config = read_config(None, [*AUTO, *(f"tensor.budget.{key}={int(limit)}" for key, limit in most.items())])
    found = plan_within_budget(config, FACTS)
    assert all(cost(found, key) <= limit for key, limit in most.items())


def test_memory_is_that_of_a_process():
    budget = 0.5 * cost(planned(1), "state_bytes")
    config = read_config(None, [*AUTO, f"tensor.budget.state_bytes={int(budget)}"])
    one, two = (plan_within_budget(config, FACTS, count) for count in (1, 2))
    assert sum(plan.parameters for plan in two.values()) > sum(plan.parameters for plan in one.values())


def test_an_enormous_budget_is_the_dense_model():
    config = read_config(None, [*AUTO, "tensor.budget.parameters=1e12"])
    assert plan_within_budget(config, FACTS) == planned(1)


def test_without_a_budget_the_configured_share_counts():
    assert plan_within_budget(read_config(None, [*AUTO, "tensor.auto.share=0.4"]), FACTS) == planned(0.4)


@pytest.mark.parametrize("kind", WORKLOADS)
def test_every_kind_of_model_fits_a_budget(kind):
    def size(*more):
        config = read_config(None, [*WORKLOADS[kind], "model.format=auto", *more])
        plan = plan_within_budget(config, FACTS)
        return estimate(config, plan, 1, config.tokens_per_forward(1)).params

    budget = int(0.9 * size("tensor.auto.share=1"))
    assert size("tensor.auto.share=0.01") < budget
    assert size(f"tensor.budget.parameters={budget}") <= budget


def test_an_impossible_budget_names_the_smallest_model():
    config = read_config(None, [*AUTO, "tensor.budget.parameters=10"])
    least = cost(planned(SHARES[-1]), "parameters")
    sentence = rf"tensor\.budget\.parameters = 10 .* smallest model of this shape needs {least:,}"
    with pytest.raises(ConfigError, match=sentence):
        plan_within_budget(config, FACTS)


def test_a_budget_without_a_matrix_to_size_is_refused():
    with pytest.raises(ConfigError, match=r"tensor\.budget is set and no matrix has the format auto"):
        read_config(None, [*TINY, "tensor.budget.parameters=1000"])
    read_config(None, [*TINY, "tensor.budget.parameters=1000", "tensor.layers=[{match: '*q_proj', format: auto}]"])
