"""Parts of the caller's: a model, a task, an optimizer and observers; and a trained model without DeepSpeed."""

import json
import subprocess
import sys

import pytest
import torch
from forked import run_processes
from own_parts import LR, Line, plain_losses
from support import ROOT, environment, losses, metrics, saved_tensors, tiny_run
from test_rank_adaptation import adapting

from comera_dist.errors import CheckpointError
from comera_dist.run.trained import load_trained

pytestmark = pytest.mark.distributed
RECORDS = ["RunStarted", *["StepLogged"] * 6, "RunFinished", "RunEnded"]


@pytest.fixture(scope="module")
def own(tiny_corpus, tmp_path_factory):
    """Runs with parts of their own on one process and on two; what the first process of each returned."""
    directory = tmp_path_factory.mktemp("own")

    def call(name, *overrides, **more):
        return ["train_own", {"directory": str(directory), "name": name, "overrides": overrides, **more}]

    single = [call(f"adam_{stage}", f"train.zero_stage={stage}") for stage in (0, 1, 2, 3)]
    single += [call("again", "train.steps=3"), call("again"), call("configured", kind=None)]
    single.append(["adapt_own", {"directory": str(directory)}])
    single.append(["built_models", {"overrides": adapting(tiny_corpus, directory, "built", "train.zero_stage=0")}])
    for kind in ("momentum", "sgd"):
        single += [call(f"{kind}_2", "train.zero_stage=2", *more, kind=kind) for more in (["train.steps=3"], [])]
    single += [[name, {"directory": str(directory)}] for name in ("refused_parts", "tidied_run")]
    returned = run_processes(1, "several", calls=single)[0]
    double = run_processes(2, "several", calls=[call("two", "train.zero_stage=1")])
    return directory, returned, [one[0] for one in double]


@pytest.mark.parametrize("name", ["adam_0", "adam_1", "adam_2", "adam_3", "two", "again"])
def test_a_module_task_and_optimizer_of_the_caller_train_as_in_a_plain_loop(own, name):
    """At every ZeRO stage, on two processes, and across a resume; the learning rate is the optimizer's."""
    assert losses(own[0], name) == pytest.approx(plain_losses(str(own[0]), 6), rel=1e-5)


@pytest.mark.parametrize("name", ["adam_0", "adam_3", "momentum_2", "two"])
def test_the_logged_rate_is_that_of_the_callers_optimizer(own, name):
    """Not `optim.lr`, by which nothing is stepped."""
    assert [record["lr"] for record in metrics(own[0], name)] == pytest.approx([LR] * 6)


@pytest.mark.parametrize("kind", ["momentum", "sgd"])
def test_what_an_optimizer_of_the_caller_keeps_is_found_and_resumed(own, kind):
    """Also where that is nothing."""
    assert losses(own[0], f"{kind}_2") == pytest.approx(plain_losses(str(own[0]), 6, kind), rel=1e-5)


def test_observers_get_the_records_on_the_first_process_and_a_broken_one_ends_nothing(own):
    assert own[1][:4] == [RECORDS] * 4
    assert own[2] == [RECORDS, []]


def test_figures_of_a_module_without_a_plan_are_those_of_its_parameters(own):
    summary = json.loads((own[0] / "adam_0/summary.json").read_text())
    assert (summary["params"], summary["dense_params"], summary["compression"], summary["ranks"]) == (10, 10, 1.0, {})


def test_the_configured_optimizer_updates_a_module_of_the_caller(own):
    assert len(set(losses(own[0], "configured"))) == 6


def test_ranks_do_not_adapt_with_a_module_or_an_optimizer_of_the_caller(own):
    module, optimizer = own[1][7]
    assert module.startswith("ConfigError: ranks.adapt = true and the model was handed in as a module")
    assert optimizer.startswith("ConfigError: ranks.adapt = true and an optimizer was handed in")


def test_a_module_or_an_optimizer_that_a_checkpoint_would_not_hold_is_refused(own):
    for said in (own[1][-2][:5], own[1][-2][5:]):  # ZeRO stages 0 and 3
        in_bf16, frozen, in_part, with_statistics, plain = said
        assert plain.startswith("ConfigError: the model Linear has no function measure, expected a forward that")
        assert in_bf16.startswith(
            "ConfigError: the parameter layer.weight is in torch.bfloat16, expected torch.float32"
        )
        assert frozen.startswith("ConfigError: the parameter layer.bias is frozen")
        assert in_part.startswith("ConfigError: the optimizer does not have the parameter layer.bias")
        assert with_statistics.startswith("ConfigError: a step changed the buffer norm.running_mean")


def test_a_finished_run_whose_checkpoints_were_removed_is_not_begun_anew(own):
    again, longer = own[1][-1]
    assert "already finished" in again
    assert longer.startswith("CheckpointError: ")
    assert "is finished and its checkpoints are gone" in longer
    assert len(losses(own[0], "tidied")) == 3


def test_a_function_builds_every_model_that_rank_adaptation_asks_for(own):
    (drawn, first), *others = own[1][8]
    assert drawn
    assert len(others) >= 2
    assert not any(drawn for drawn, _ in others)
    assert first > others[0][1] > others[-1][1]


def test_weights_of_a_module_are_loaded_into_one_that_is_handed_in(own):
    with pytest.raises(CheckpointError, match="was trained with a module of the caller's; hand that in as `model`"):
        load_trained(own[0] / "adam_3")
    loaded = load_trained(own[0] / "adam_3", model=Line()).model
    assert torch.equal(loaded.layer.weight, saved_tensors(own[0], "adam_3", 6)["weight/layer.weight"])


def run_python(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(PYTHONPATH=str(ROOT)), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_run_starts_its_own_process_and_is_read_without_deepspeed_or_a_process_group(tiny_corpus, tmp_path):
    overrides = tiny_run(tiny_corpus, tmp_path, "run", "train.steps=2")
    run_python(f"""
from comera_dist.config.reader import read_config
from comera_dist.run.train import train
assert train(read_config(None, {overrides!r})) == 0
""")
    run_python(f"""
import sys, torch
from pathlib import Path
from comera_dist.generate import writer
from comera_dist.run.evaluate import evaluate_run
from comera_dist.run.trained import load_trained
from comera_dist.runtime.processes import alone
run, tokens = Path({str(tmp_path / "run")!r}), torch.zeros(1, 16, dtype=torch.int64)
assert load_trained(run).model.measure(tokens, tokens)["loss"].isfinite()
assert evaluate_run(run, alone(), None, None, "valid", None)["loss"] > 0
assert not torch.distributed.is_initialized()
assert not {{"deepspeed", "wandb", "matplotlib"}} & sys.modules.keys()
""")
