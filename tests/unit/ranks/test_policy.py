"""The door for rank policies: chosen by a key, with keys and checks of their own, within the limits of the run."""

from dataclasses import replace

import pytest
import torch
import yaml
from keep_largest import KeepLargest
from support import TINY

from comera_dist.config.ranks_section import Ranks
from comera_dist.config.reader import read_config
from comera_dist.config.registry import POLICIES
from comera_dist.errors import ConfigError
from comera_dist.formats.tensor_train.shapes import TTShape
from comera_dist.ranks.layout import GateLayout
from comera_dist.ranks.limits import may_go, within
from comera_dist.ranks.policy import Decision, counts, read_counts
from comera_dist.ranks.threshold import Threshold

RUN = [*TINY, "ranks.adapt=true", "ranks.sync_every=1"]
# Two layers of bonds 3 and 2, and 2; only the first one adapts.
LAYOUT = GateLayout.of(
    {
        "layers.0.up": TTShape(24, 30, (6, 4), (30,), (1, 3, 2, 1)),
        "head": TTShape(24, 30, (24,), (30,), (1, 2, 1)),
    },
    ("layers.*",),
)


@pytest.fixture
def own():
    """A policy from outside the package."""
    POLICIES.add("keep_largest", KeepLargest)
    yield
    POLICIES.remove("keep_largest")


def problems(*overrides):
    with pytest.raises(ConfigError) as caught:
        read_config(None, [*RUN, *overrides])
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    "overrides",
    [
        ["ranks.policy=keep_largest"],
        ["ranks.policy.kind=keep_largest"],
        ["ranks.policy={kind: keep_largest}"],
        ["ranks.policy=keep_largest", "ranks.policy.keep=3"],
        ["ranks.policy.patience=9", "ranks.policy={kind: keep_largest, keep: 3}"],
    ],
    ids=str,
)
def test_a_word_or_a_section_chooses_it(own, tmp_path, overrides):
    config = read_config(None, [*RUN, *overrides])
    assert config.ranks.policy == KeepLargest(keep=3)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    assert read_config(tmp_path / "config.yaml") == config


def test_the_usual_policy_needs_no_word():
    assert read_config(None, RUN).ranks.policy == Threshold()
    assert read_config(None, [*RUN, "ranks.policy=threshold"]) == read_config(None, RUN)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["ranks.policy=unknown"], "ranks.policy = 'unknown' is not possible: expected one of threshold, keep_largest"),
        (
            ["ranks.policy={kind: unknown, keep: 3}"],
            "ranks.policy.kind = 'unknown' is not possible: expected one of threshold, keep_largest",
        ),
        (
            ["ranks.policy=unknown", "ranks.policy.keep=3"],
            "ranks.policy = 'unknown' is not possible: expected one of threshold, keep_largest",
        ),
        (
            ["ranks.policy={kind: keep_largest, patience: 3}"],
            "ranks.policy.patience is not a known key; use one of keep, kind, wait",
        ),
        (
            ["ranks.policy=keep_largest", "ranks.policy.keeps=3"],
            "ranks.policy.keeps is not a known key; did you mean ranks.policy.keep?",
        ),
        (
            ["ranks.policy=keep_largest", "ranks.policy.keep=0"],
            "ranks.policy.keep = 0 is not possible: input should be greater than 0",
        ),
        (
            ["ranks.policy=keep_largest", "ranks.min_rank=4"],
            "ranks.policy.keep = 3 is less than ranks.min_rank = 4; raise the one or lower the other",
        ),
        (
            ["ranks={adapt: false, policy: keep_largest}"],
            "ranks.policy has no effect while ranks.adapt is false; set ranks.adapt=true or remove it",
        ),
        (["ranks.policy=5"], "ranks.policy = 5 is not possible: input should be a valid dictionary or instance of"),
    ],
)
def test_each_mistake_is_one_sentence(own, overrides, sentence):
    (found,) = problems(*overrides)
    assert found.startswith(sentence)


def test_counters_are_json_and_back():
    counts_G = torch.arange(7)
    saved = counts(LAYOUT, counts_G)
    assert saved == {"layers.0.up": [[0, 1, 2], [3, 4]], "head": [[5, 6]]}
    assert torch.equal(read_counts(saved), counts_G)


@pytest.mark.parametrize(("min_rank", "removable"), [(1, ()), (2, ()), (1, ("layers.0.*",))])
def test_the_least_important_indices_of_adapted_layers_may_go(min_rank, removable):
    importance_G = torch.tensor([2.0, 3.0, 1.0, 5.0, 4.0, 0.0, 9.0], dtype=torch.float64)
    found = may_go(LAYOUT, importance_G, Ranks(adapt=True, min_rank=min_rank, removable=removable))
    expected = {1: {0, 2, 4}, 2: {2}}[min_rank] if not removable else {0, 1, 2, 3, 4}
    assert set(found.nonzero().flatten().tolist()) == expected


def test_a_decision_is_kept_within_the_limits():
    everything = Decision(torch.ones(7, dtype=torch.bool), torch.full((3,), 99), {"figure": 1.0})
    may_go_G = torch.tensor([True, True, False, True, False, False, False])
    found = within(LAYOUT, may_go_G, True, everything)
    assert torch.equal(found.cut_G, may_go_G)
    # Ranks are 1 and 1 after the cut: the cores of modes 6, 4 and 30 fill 6 and 4 beside them; `head` does not adapt.
    assert found.added_B.tolist() == [3, 3, 0]
    assert found.figures == {"figure": 1.0}
    assert not within(LAYOUT, may_go_G, False, everything).added_B.any()
    assert not within(LAYOUT, may_go_G, True, replace(everything, added_B=torch.full((3,), -1))).added_B.any()
    gone = within(LAYOUT, torch.ones(7, dtype=torch.bool), True, everything)
    assert gone.added_B.tolist() == [0, 0, 0]
