"""A rank policy from outside the package is chosen by a key, and cuts and resumes on any number of processes."""

import json

import pytest
import torch
from forked import run_processes
from support import cut_back, losses, saved_tensors, tiny_run

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]
# Planned ranks are 6 and smaller; an index goes at each sync from the second one on.
OWN = [
    "ranks={adapt: true, layers: ['*_proj'], sync_every: 2, min_rank: 2, policy: {kind: keep_largest, keep: 4}}",
    "tensor.rank=6",
    "optim.lr=0.01",
    "train.steps=10",
    "checkpoint.every=3",
    "checkpoint.keep=99",
]
RESUMED = (3, 6)  # before the first cut, and after the second one


def syncs(directory, name):
    records = [json.loads(line) for line in (directory / name / "ranks.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "rebuild_seconds"} for record in records]


@pytest.fixture(scope="module")
def runs(tiny_corpus, tmp_path_factory):
    """The run on one process and on two, and the latter resumed on two and on one."""
    directory = tmp_path_factory.mktemp("policy")

    def run(name, *overrides):
        return tiny_run(tiny_corpus, directory, name, *OWN, *overrides)

    run_processes(2, "train_with_own_policy", runs=[run("two", "train.zero_stage=1")])
    again = [run(cut_back(directory, "two", f"two_from_{step}", step), "train.zero_stage=1") for step in RESUMED]
    run_processes(2, "train_with_own_policy", runs=again)
    single = [run("one", "train.zero_stage=0"), run(cut_back(directory, "two", "two_on_one", 6), "train.zero_stage=0")]
    run_processes(1, "train_with_own_policy", runs=single)
    return directory


def test_its_rule_is_followed_within_the_limits_of_the_run(runs):
    """Layers that do not adapt keep their ranks, though the policy marks indices of them too."""
    first, *records = syncs(runs, "one")
    for number, record in enumerate(records, start=1):
        gone = max(0, number - 1)
        for name, ranks in record["ranks"].items():
            expected = (
                [min(r, max(4, r - gone)) for r in first["ranks"][name]] if "_proj" in name else first["ranks"][name]
            )
            assert ranks == expected
    assert [record["oldest"] for record in records] == [1, 2, 3, 4, 5]


def test_two_processes_are_the_run_of_one(runs):
    assert losses(runs, "two") == pytest.approx(losses(runs, "one"), rel=2e-6)
    assert [record["ranks"] for record in syncs(runs, "two")] == [record["ranks"] for record in syncs(runs, "one")]


@pytest.mark.parametrize("step", RESUMED)
def test_resume_between_its_cuts_is_bit_for_bit(runs, step):
    expected, found = saved_tensors(runs, "two", 10), saved_tensors(runs, f"two_from_{step}", 10)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert syncs(runs, f"two_from_{step}") == syncs(runs, "two")


def test_resume_on_another_number_of_processes(runs):
    assert losses(runs, "two_on_one") == pytest.approx(losses(runs, "one"), rel=2e-6)
    assert syncs(runs, "two_on_one")[-1]["oldest"] == 5
