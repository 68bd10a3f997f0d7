"""Runs with each optimizer, killed and resumed: weights and everything that the optimizer keeps."""

import importlib.util

import pytest
import torch
from support import cut_back, losses, run_processes, saved_tensors, tiny_run

pytestmark = pytest.mark.distributed
KINDS = ["adamw", "muon", *(["galore"] if importlib.util.find_spec("galore_torch") else [])]
SIX = ["train.steps=6", "checkpoint.every=3", "checkpoint.keep=9", "train.zero_stage=0", "model.format.attention=dense"]
# Step 4 is made in the projection that step 3 chose, and step 5 chooses another.
GALORE = "optim.galore={rank: 3, update_every: 2}"


def kept(tensors):
    """Kinds of tensors that were saved of a dense matrix in a block."""
    return {key.partition("/")[0] for key in tensors if key.endswith("layers.0.self_attn.q_proj.weight")}


@pytest.fixture(scope="module")
def made(tiny_corpus, tmp_path_factory):
    """Six steps with each optimizer on two processes, the same runs cut back to step 3 and resumed; what is said where
    a run of one optimizer is resumed with another; and a digest of what each process holds after three steps."""
    directory = tmp_path_factory.mktemp("optimizers")

    def run(name, kind):
        more = [GALORE] if kind == "galore" else []
        return tiny_run(tiny_corpus, directory, name, *SIX, f"optim.kind={kind}", *more)

    assert run_processes(2, "train_runs", runs=[run(kind, kind) for kind in KINDS]) == [[0] * len(KINDS)] * 2
    again = [run(cut_back(directory, kind, f"{kind}_again", 3), kind) for kind in KINDS]
    name = cut_back(directory, "muon", "muon_as_adamw", 3)
    changed = [tiny_run(tiny_corpus, directory, name, *SIX, f"train.zero_stage={stage}") for stage in (0, 1)]
    faults = [{"overrides": overrides, "fault": "none", "process": 0, "step": 0} for overrides in changed]
    calls = [("train_runs", {"runs": again}), ("adapt_with_faults", {"runs": faults})]
    calls += [("make_steps", {"overrides": run(f"{kind}_digest", kind)}) for kind in KINDS]
    done = run_processes(2, "several", calls=calls)
    assert done[0][0] == [0] * len(KINDS)
    digests = {kind: {process[2 + index]["digest"] for process in done} for index, kind in enumerate(KINDS)}
    return {"directory": directory, "errors": done[0][1], "digests": digests}


@pytest.fixture(scope="module")
def runs(made):
    return made["directory"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(runs, kind):
    expected, found = saved_tensors(runs, kind, 6), saved_tensors(runs, f"{kind}_again", 6)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert losses(runs, f"{kind}_again") == losses(runs, kind)


def test_each_optimizer_saves_what_it_keeps(runs):
    found = {kind: kept(saved_tensors(runs, kind, 6)) for kind in KINDS}
    every = {
        "adamw": {"weight", "exp_avg", "exp_avg_sq"},
        "muon": {"weight", "momentum_buffer"},
        "galore": {"weight", "exp_avg", "exp_avg_sq", "projection"},
    }
    assert found == {kind: every[kind] for kind in KINDS}


def test_optimizers_train_differently_and_learn(runs):
    last = {kind: losses(runs, kind)[-1] for kind in KINDS}
    assert len(set(last.values())) == len(KINDS)
    assert all(last[kind] < losses(runs, kind)[0] for kind in KINDS)


def test_a_checkpoint_of_another_optimizer_is_refused(made):
    """At the stage of the checkpoint, and at one where the state of AdamW is sharded."""
    assert len(made["errors"]) == 2
    for error in made["errors"]:
        assert error.startswith("CheckpointError: the checkpoint's optimizer kept momentum_buffer (16, 16) of model.")
        assert "this one keeps exp_avg (16, 16), exp_avg_sq (16, 16); set optim as the run's config.yaml" in error


@pytest.mark.parametrize("kind", KINDS)
def test_all_processes_hold_the_same_weights_and_state(made, kind):
    assert len(made["digests"][kind]) == 1
