"""Another run's weights begin a run only where every key that their function depends on is the same."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from support import FACTS, TINY, WORKLOADS

from comera_dist.checkpoints.read import Checkpoint
from comera_dist.config.reader import read_config
from comera_dist.errors import CheckpointError
from comera_dist.formats.plan import write_plan
from comera_dist.models.decoder.section import DecoderConfig
from comera_dist.models.dlrm.section import DLRMConfig
from comera_dist.models.encoder.section import EncoderConfig
from comera_dist.models.family import kind_of, plan_model
from comera_dist.run import start
from comera_dist.run.start import Start, find_start, remarks, start_from

TASK = SimpleNamespace(fingerprint="f" * 64)
RUNS = {"decoder": TINY, **WORKLOADS}
MODELS = {"decoder": DecoderConfig, "masked_lm": EncoderConfig, "dlrm": DLRMConfig}


def begin(kind, *overrides, model=(), facts=FACTS):
    """The plan that a run begins with, where another run has saved `model` in its configuration."""
    config = read_config(None, [*RUNS[kind], *overrides, "run.start_from=other"])
    trained = read_config(None, RUNS[kind])
    record = {
        "config": {"model": trained.model.model_dump(mode="json") | dict(model)},
        "plan": write_plan(plan_model(trained, FACTS)),
        "cursor": {"fingerprint": TASK.fingerprint},
    }
    other = Checkpoint(Path("step"), {"run": record}, processes=None)
    return start_from(other, config, TASK, plan_model(config, facts), processes=None).plan


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (kind, key)
        for kind, model in MODELS.items()
        for key in model.model_fields
        if key not in kind_of(model()).free_keys
    ],
)
def test_every_key_of_a_model_is_compared_unless_it_is_named(kind, key):
    with pytest.raises(CheckpointError, match=rf"model.{key} is .* here and of another run in step; set model and"):
        begin(kind, model={key: "of another run"})


@pytest.mark.parametrize(
    ("kind", "override"),
    [
        ("decoder", "model.kv_heads=1"),
        ("masked_lm", "model.vocab_size=70"),
        ("classifier", "model.classes=4"),
        ("dlrm", "model.table_rows=[60,7,49]"),
    ],
)
def test_sizes_that_the_data_may_give_are_those_of_the_matrices(kind, override):
    model = read_config(None, [*RUNS[kind], override]).model
    given = {key: value for key, value in model if key in vars(FACTS) and value is not None}
    with pytest.raises(CheckpointError, match=r" is \d+ → \d+ here and \d+ → \d+ in step; set model and data as in"):
        begin(kind, override, facts=SimpleNamespace(**vars(FACTS) | given))


def test_what_does_not_change_the_function_may_differ():
    assert begin("decoder", "model.kv_heads=2", "tensor.rank=2", "model.format=dense", "data.seq_len=8")
    assert begin("masked_lm", "model.dropout=0.5", "data.seq_len=8", "model.vocab_size=64")
    assert begin("dlrm", "model.table_rows=[60,7,48]", "model.dense_features=2")


def test_a_run_that_goes_on_is_not_planned_anew(monkeypatch):
    """Its budget of memory may be too small for the present processes or ZeRO stage, and the key may not change."""
    config = read_config(None, [*TINY, "model.format=auto", "tensor.budget.state_bytes=1000"])
    plan = write_plan(plan_model(config, FACTS))
    record = {"config": config.model_dump(mode="json"), "plan": plan, "planned": plan, "cursor": {"tokens": 512}}
    own = Checkpoint(Path("step"), {"step": 4, "run": record}, processes=None)
    monkeypatch.setattr(start, "find_checkpoint", lambda *_: own)
    found = find_start(config, TASK, lambda: pytest.fail("it was planned"), Path("checkpoints"), processes=None)
    assert write_plan(found.plan) == write_plan(found.planned) == plan


def test_matrices_that_another_run_gives_are_counted():
    """The configuration says tensor trains, and the other run has dense matrices but for one."""
    configured = plan_model(read_config(None, TINY), FACTS)
    dense = plan_model(read_config(None, [*TINY, "model.format=dense"]), FACTS)
    config = read_config(None, [*TINY, "run.start_from=other"])
    (name, _), *rest = dense.items()
    there = {name: configured[name], **dict(rest)}
    other = Checkpoint(Path("step"), {}, processes=None)
    (line,) = remarks(config, Start(there, there, other=other, configured=configured), ["Of tensor."])
    first, plan = rest[0]
    assert line == (
        f"{len(rest)} of {len(dense)} matrices are as in run.start_from = other and not as model.format and tensor "
        f"say, e.g. {first}: dense with {plan.parameters:,} numbers, not {configured[first].tag} with "
        f"{configured[first].parameters:,}."
    )
    assert remarks(config, Start(configured, configured, other=other, configured=configured), ["Of tensor."]) == []
    assert remarks(config, Start(there, there, own=other), ["Of tensor."]) == []


def test_keys_of_tensor_are_named_at_the_start_from_random_weights():
    config = read_config(None, TINY)
    configured = plan_model(config, FACTS)
    assert remarks(config, Start(configured, configured), ["Of tensor."]) == ["Of tensor."]


def ranks_remarks(*overrides):
    config = read_config(None, [*TINY, "ranks.adapt=true", "ranks.sync_every=1", "tensor.rank=5", *overrides])
    configured = plan_model(config, FACTS)
    return remarks(config, Start(configured, configured), [])


def test_ranks_of_which_none_may_be_cut_are_named():
    alone = "ranks.layers=['*_proj']"
    said = ["ranks.min_rank = 5 lets no rank be cut: the largest of the layers that adapt is 5."]
    assert ranks_remarks(alone, "ranks.min_rank=5") == said
    assert ranks_remarks(alone, "ranks.min_rank=4") == []
    assert ranks_remarks(alone, "ranks.min_rank=5", "ranks.removable=['*.0.*']") == []
    assert ranks_remarks("tensor.embedding_rank=6", "ranks.min_rank=5") == []
