"""What a run may change between a checkpoint and its next start, and what it is told of it."""

from pathlib import Path

import pytest
from support import TINY, WORKLOADS

from comera_dist.checkpoints.read import Checkpoint
from comera_dist.config.idle import idle_keys
from comera_dist.config.reader import read_config
from comera_dist.config.tree import Config
from comera_dist.errors import CheckpointError, ConfigError
from comera_dist.run.compatibility import changes_line, check_same_run

KINDS = {"decoder": TINY, **WORKLOADS}
BUDGET = ["train.steps=null", "train.tokens=1280"]


def checkpoint_of(kind, *overrides, step=4):
    """As a run with these overrides would save it."""
    config = read_config(None, [*KINDS[kind], *overrides])
    cursor = {"seed": 1, "epoch": 0, "tokens": step * config.step_tokens, "fingerprint": "f" * 64}
    record = {"config": config.model_dump(mode="json"), "cursor": cursor}
    return Checkpoint(Path("step"), {"step": step, "run": record}, processes=None)


def start(kind, *overrides, before=(), step=4):
    """The line that a start with `overrides` says after one with `before` has saved a checkpoint."""
    config, checkpoint = read_config(None, [*KINDS[kind], *overrides]), checkpoint_of(kind, *before, step=step)
    check_same_run(config, checkpoint)
    return changes_line(config, checkpoint)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_run_goes_on_without_a_word(kind):
    assert start(kind) is None


@pytest.mark.parametrize(
    ("kind", "override", "sentence"),
    [
        ("decoder", "data.seq_len=32", "data.seq_len = 32 and the run's checkpoint was trained with 16; set it back, "),
        ("masked_lm", "data.seq_len=8", "data.seq_len = 8 and the run's checkpoint was trained with 16; set it back, "),
        ("masked_lm", "data.masked_fraction=0.3", "data.masked_fraction = 0.3 and the run's checkpoint was trained"),
        ("decoder", "data.documents=separate", "data.documents = separate and the run's checkpoint was trained with "),
        ("decoder", "model.kv_heads=1", "model.kv_heads = 1 and the run's checkpoint was trained with null; set it"),
        ("decoder", "tensor.rank=3", "tensor.rank = 3 and the run's checkpoint was trained with 4; set it back"),
        (
            "decoder",
            "ranks={adapt: true, sync_every: 1}",
            "ranks.adapt = True and the run's checkpoint was trained with False",
        ),
    ],
)
def test_rows_model_and_ranks_stay_as_they_are(kind, override, sentence):
    with pytest.raises(CheckpointError) as caught:
        start(kind, override)
    assert str(caught.value).startswith(sentence)
    assert "another run.name" in str(caught.value)
    assert ("run.start_from" in str(caught.value)) == override.startswith("data.")


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("dlrm", "data.seq_len", 32),
        ("classifier", "data.masked_fraction", 0.5),
        ("masked_lm", "model.classes", 3),
        ("decoder", "ranks.sync_every", 7),
        ("decoder", "ranks.policy.patience", 7),
    ],
)
def test_keys_without_effect_must_be_removed_and_the_run_goes_on(kind, key, value):
    """An earlier version took them without a word."""
    given = [*KINDS[kind], f"{key}={value}"]
    with pytest.raises(ConfigError, match=f"^{key}( = {value} is for| = {value} has no effect| has no effect)"):
        read_config(None, given)
    config, checkpoint = read_config(None, KINDS[kind]), checkpoint_of(kind)
    *sections, leaf = key.split(".")
    section = checkpoint.run["config"]
    for name in sections:
        section = section[name]
    section[leaf] = value
    assert list(idle_keys(Config.model_validate(checkpoint.run["config"]))) == [key]
    for then in (config, Config.model_validate(checkpoint.run["config"])):  # without the key, and as the run wrote it
        check_same_run(then, checkpoint)
        assert changes_line(then, checkpoint) is None


def test_a_key_that_has_an_effect_from_now_on_is_said():
    before = checkpoint_of("decoder")
    before.run["config"]["optim"]["galore"] = {"rank": 3}
    config = read_config(None, [*TINY, "model.format=dense", "optim.kind=galore", "optim.galore.rank=5"])
    assert "optim.galore.rank 3 → 5" not in (line := changes_line(config, before) or "")
    assert "optim.galore.rank " in line


FIRST = "run.start_from=runs/first"


@pytest.mark.parametrize(
    ("before", "other", "begins", "begun"),
    [
        ([], ["run.start_from=runs/other"], "runs/other", "random weights"),
        ([FIRST], ["run.start_from=runs/other"], "runs/other", "runs/first"),
        ([FIRST], [FIRST, "run.start_step=3"], "runs/first at step 3", "runs/first"),
        ([FIRST, "run.start_step=0"], [FIRST, "run.start_step=3"], "runs/first at step 3", "runs/first at step 0"),
    ],
)
def test_a_run_keeps_the_weights_with_which_it_began(before, other, begins, begun):
    with pytest.raises(CheckpointError) as caught:
        start("decoder", *other, before=before)
    assert str(caught.value) == (
        f"run.start_from = {begins} and the run has begun with {begun}; set it back to go on, or give the new run "
        f"another run.name"
    )
    assert start("decoder", *before, before=before) is None
    assert start("decoder", before=before) is None


def test_another_kind_of_model_is_refused_by_its_name():
    with pytest.raises(CheckpointError, match=r"model.kind = encoder and .* was trained with decoder"):
        check_same_run(read_config(None, [*KINDS["masked_lm"], "train.batch_size=8"]), checkpoint_of("decoder"))


@pytest.mark.parametrize(
    ("changed", "remedy"),
    [
        (["train.batch_tokens=256"], "set train.batch_tokens=128 as before, or set train.steps"),
        (["train.batch_tokens=64"], "set train.batch_tokens=128 as before, or set train.steps"),
        (["train.batch_tokens=2048", "train.batch_size=4"], "set train.batch_tokens=128 train.batch_size=null as"),
    ],
    ids=str,
)
def test_another_batch_under_a_budget_of_tokens_is_refused(changed, remedy):
    with pytest.raises(CheckpointError) as caught:
        start("decoder", *changed, *BUDGET, before=BUDGET)
    assert f"the run's checkpoint has read 512 tokens in 4 steps; {remedy}" in str(caught.value)


def test_a_budget_is_refused_after_a_change_of_batch_in_the_past():
    """The checkpoint's configuration has the batch of now, its steps have not."""
    checkpoint = checkpoint_of("decoder")
    checkpoint.run["cursor"]["tokens"] += 128
    with pytest.raises(CheckpointError, match="has read 640 tokens in 4 steps"):
        check_same_run(read_config(None, [*TINY, *BUDGET]), checkpoint)
    check_same_run(read_config(None, TINY), checkpoint)


@pytest.mark.parametrize(
    ("overrides", "before", "line"),
    [
        (["train.steps=12"], [], "train.steps 8 → 12"),
        (["train.steps=null", "train.tokens=2560"], BUDGET, "train.tokens 1280 → 2560"),
        (["train.batch_tokens=256"], [], "train.batch_tokens 128 → 256"),
        (["optim.lr=0.001", "schedule.kind=wsd"], [], "optim.lr 0.003 → 0.001, schedule.kind cosine → wsd"),
        (["optim.betas=[0.9,0.99]"], [], "optim.betas [0.9, 0.95] → [0.9, 0.99]"),
        ([], ["deepspeed.zero_optimization.overlap_comm=true"], "deepspeed.zero_optimization.overlap_comm True → null"),
    ],
    ids=str,
)
def test_a_changed_recipe_is_said_in_one_line(overrides, before, line):
    assert start("decoder", *overrides, before=before) == f"Changed since the checkpoint: {line}."


def test_what_is_trained_does_not_depend_on_logs_and_places():
    watched = ["log.every=5", "log.profile.steps=1", "wandb.project=x", "tensorboard.enabled=true"]
    elsewhere = ["run.name=other", "run.directory=there", "data.corpus=there", "eval.every=2", "checkpoint.every=3"]
    assert start("decoder", *elsewhere, *watched, "train.timeout_seconds=9") is None


def test_a_checkpoint_of_an_earlier_version_was_trained_as_the_defaults_say():
    checkpoint = checkpoint_of("masked_lm")
    recorded = checkpoint.run["config"]
    del recorded["ranks"], recorded["data"]["masked_fraction"], recorded["optim"]["galore"]
    recorded["model"]["long_gone"] = 5
    config = read_config(None, KINDS["masked_lm"])
    check_same_run(config, checkpoint)
    assert changes_line(config, checkpoint) is None
    with pytest.raises(CheckpointError, match=r"data.masked_fraction = 0.5 .* with 0.15"):
        check_same_run(read_config(None, [*KINDS["masked_lm"], "data.masked_fraction=0.5"]), checkpoint)
