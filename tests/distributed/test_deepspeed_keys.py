"""Keys that are passed through to DeepSpeed change nothing of what is trained, saved and resumed."""

import pytest
import torch
from forked import run_processes
from support import cut_back, losses, saved_tensors, tiny_run

from comera_dist.config.deepspeed import STAGES

pytestmark = pytest.mark.distributed
FOUR = ["train.steps=4", "checkpoint.every=2", "checkpoint.keep=9", "train.micro_batch=2"]
# Of two keys in different groups one would leave the other nothing to do. No value is DeepSpeed's default.
SPLIT_STATE = {
    "buckets": {
        "reduce_bucket_size": 100,
        "allgather_bucket_size": 64,
        "overlap_comm": "true",
        "use_multi_rank_bucket_allreduce": "false",
        "ignore_unused_parameters": "false",
    },
    "whole": {"contiguous_gradients": "false", "reduce_scatter": "false", "allgather_partitions": "false"},
}
SPLIT_WEIGHTS = {
    "buckets": {
        "reduce_bucket_size": 100,
        "sub_group_size": 300,
        "stage3_prefetch_bucket_size": 100,
        "stage3_param_persistence_threshold": 0,
        "stage3_max_live_parameters": 200,
        "stage3_max_reuse_distance": 0,
        "stage3_use_all_reduce_for_fetch_params": "true",
    },
    "whole": {
        "overlap_comm": "false",
        "contiguous_gradients": "false",
        "reduce_scatter": "false",
        "stage3_model_persistence_threshold": 100,
        "stage3_allgather_sequential": "true",
        "memory_efficient_linear": "false",
    },
}
TRIED = {1: SPLIT_STATE, 2: SPLIT_STATE, 3: SPLIT_WEIGHTS}
# memory_breakdown is left out for its slowness: all that it does is to collect garbage and to print.
MEASURES = ["wall_clock_breakdown=true", "dump_state=true", "steps_per_print=1", "comms_logger.enabled=true"]
MEASURES += ["flops_profiler={enabled: true, profile_step: 2}"]
CASES = [(stage, group) for stage, groups in TRIED.items() for group in groups] + [(0, "measures"), (1, "measures")]


def keys_of(stage: int, group: str) -> list[str]:
    if group == "measures":
        return [f"deepspeed.{key}" for key in MEASURES]
    return [f"deepspeed.zero_optimization.{key}={value}" for key, value in TRIED[stage][group].items()]


@pytest.fixture(scope="module")
def runs(tiny_corpus, tmp_path_factory):
    """Four steps on two processes at every stage without keys, with each group, and that cut back to two and resumed;
    and with gradients that are exchanged in bf16."""
    directory = tmp_path_factory.mktemp("keys")

    def run(name, stage, keys=()):
        return tiny_run(tiny_corpus, directory, name, *FOUR, f"train.zero_stage={stage}", *keys)

    first = [run(f"plain_{stage}", stage) for stage in range(4)]
    first += [run(f"{group}_{stage}", stage, keys_of(stage, group)) for stage, group in CASES]
    first += [run(f"bf16_{stage}", stage, ["deepspeed.communication_data_type=bf16"]) for stage in (0, 2)]
    run_processes(2, "train_runs", runs=first)
    for stage, group in CASES:
        cut_back(directory, f"{group}_{stage}", f"{group}_{stage}_again", 2)
    again = [run(f"{group}_{stage}_again", stage, keys_of(stage, group)) for stage, group in CASES]
    run_processes(2, "train_runs", runs=again)
    return directory


def test_every_key_is_tried_at_each_of_its_stages():
    tried = {key: tuple(s for s in TRIED if any(key in group for group in TRIED[s].values())) for key in STAGES}
    assert tried == STAGES


@pytest.mark.parametrize(("stage", "group"), CASES)
def test_weights_and_moments_are_those_of_a_run_without_the_keys(runs, stage, group):
    expected, found = saved_tensors(runs, f"plain_{stage}", 4), saved_tensors(runs, f"{group}_{stage}", 4)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=2e-6, msg=name)


@pytest.mark.parametrize(("stage", "group"), CASES)
def test_a_resumed_run_is_the_uninterrupted_one(runs, stage, group):
    expected, found = saved_tensors(runs, f"{group}_{stage}", 4), saved_tensors(runs, f"{group}_{stage}_again", 4)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("stage", [0, 2])
def test_gradients_in_bf16_lose_little(runs, stage):
    assert losses(runs, f"bf16_{stage}") == pytest.approx(losses(runs, f"plain_{stage}"), rel=1e-3)
    assert losses(runs, f"bf16_{stage}") != losses(runs, f"plain_{stage}")
