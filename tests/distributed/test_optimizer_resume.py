"""Runs with each optimizer at every ZeRO stage, killed and resumed: weights and everything that the optimizer keeps."""

import importlib.util

import pytest
import torch
from forked import run_processes
from support import cut_back, losses, saved_tensors, tiny_run

# The set-up that many tests share counts into the time of the first of them.
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]
WHOLE = ["spectral", *(["galore"] if importlib.util.find_spec("galore_torch") else [])]
# They step matrices by the same path as those of WHOLE: fewer runs of each prove as much.
RIVALS = ["fira", "apollo", "apollo_mini", "gum", "relora", "dion", "soap", "mlorc", "mofasgd", "loro"]
KINDS = ["adamw", "muon", *WHOLE, *RIVALS]
STAGES = (0, 1, 2, 3)
SHARPEST = (0, 1, 3)  # stages that keep weights and state in different places; stage 2 keeps them as stage 1 does
SIX = ["train.steps=6", "checkpoint.every=3", "checkpoint.keep=9", "model.format.attention=dense"]
ALL_SHAPES = "model.format.mlp=dense"  # wide, tall and square matrices
# Step 4 is made in the projection that step 3 chose, and step 5 chooses another.
SETTINGS = {
    "galore": ["optim.galore={rank: 3, update_every: 2}"],
    "dion": [ALL_SHAPES, "optim.dion.rank_fraction=0.3"],
    "soap": [ALL_SHAPES, "optim.soap.update_every=2"],
    "mlorc": [ALL_SHAPES, "optim.mlorc.rank=3"],
    "mofasgd": [ALL_SHAPES, "optim.mofasgd.rank=3"],
    "fira": ["optim.fira={rank: 3, update_every: 2}"],
    "apollo": ["optim.apollo={rank: 3, update_every: 2}"],
    "apollo_mini": ["optim.apollo_mini.update_every=2"],
    "gum": ["optim.gum={rank: 3, update_every: 2, full_share: 0.5}"],
    "relora": ["optim.relora={rank: 3, full_rank_steps: 1, restart_every: 2, warmup_steps: 1}"],
    "loro": ["model.format.mlp=low_rank", "optim.loro.exact_every=2"],  # attention is stepped by AdamW
}
HELD = [("adamw", 1), ("muon", 0), ("spectral", 3), *((kind, 1) for kind in [*WHOLE, *RIVALS])]
RESUMED = [("adamw", 0), *((kind, stage) for kind in WHOLE for stage in SHARPEST), *((kind, 1) for kind in RIVALS)]
# Processes and stage of a run that is cut back, and where it goes on.
MOVES = {"2p1_1p3": (2, 1, 1, 3), "1p0_2p2": (1, 0, 2, 2), "2p3_2p0": (2, 3, 2, 0)}
FARTHEST = "2p1_1p3"  # to other processes and another stage
# Muon rounds to bf16 on its way: from 1e-7 in a gradient to 2⁻⁹ in single entries of an update of lr · 0.2.
# Adam's steps enlarge rounding where a second moment is near 0, as a restored one of MLorc may be.
# LORO's factors are singular vectors of nearly equal singular values, which rounding turns.
TOLERANCE = dict.fromkeys(KINDS, 1e-5) | {"muon": 1e-4, "mlorc": 1e-4, "loro": 1e-3}
ADAPTING = [
    *["ranks.adapt=true", "ranks.layers=['*.mlp.*']", "ranks.sync_every=2", "ranks.patience=1", "ranks.late_end=0.7"],
    *["ranks.target_fraction=0.5", "tensor.rank=6", "train.steps=10", "checkpoint.every=5", "checkpoint.keep=9"],
    *["model.format.attention=dense", "optim.kind=spectral"],
]


def kept(tensors):
    """Kinds of tensors that were saved of a dense matrix in a block."""
    return {key.partition("/")[0] for key in tensors if key.endswith("layers.0.self_attn.q_proj.weight")}


def same_bits(directory, expected, found, step=6):
    expected, found = saved_tensors(directory, expected, step), saved_tensors(directory, found, step)
    return expected.keys() == found.keys() and all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.fixture(scope="module")
def made(tiny_corpus, tmp_path_factory):
    """Six steps with each optimizer at every stage and on one process, the same runs cut back to step 3 and resumed,
    also elsewhere; what is said where a run of one optimizer is resumed with another; what each process holds."""
    directory = tmp_path_factory.mktemp("optimizers")

    def run(name, kind, stage):
        more = [f"optim.kind={kind}", f"train.zero_stage={stage}", *SETTINGS.get(kind, [])]
        return tiny_run(tiny_corpus, directory, name, *SIX, *more)

    def again(kind, stage):
        name = cut_back(directory, f"{kind}_2p{stage}", f"{kind}_2p{stage}_again", 3)
        return run(name, kind, stage)

    def moved(count):
        moves = [(name, move) for name, move in MOVES.items() if move[2] == count]
        return [
            run(cut_back(directory, f"{kind}_{old}p{old_stage}", f"{kind}_{name}", 3), kind, stage)
            for name, (old, old_stage, _, stage) in moves
            for kind in [*WHOLE, *(RIVALS if name == FARTHEST else [])]
        ]

    run_processes(1, "train_runs", runs=[run(f"{kind}_1p0", kind, 0) for kind in WHOLE])
    straight = [run(f"{kind}_2p{stage}", kind, stage) for kind in WHOLE for stage in STAGES]
    straight += [run(f"muon_2p{stage}", "muon", stage) for stage in SHARPEST]
    straight += [run(f"{kind}_2p{stage}", kind, stage) for kind in RIVALS for stage in (0, 1)]
    straight += [run(f"loro_2p{stage}", "loro", stage) for stage in (2, 3)]  # it steps parameters of other groups
    # Every matrix alone: one process then owns nothing of what is stepped.
    small = "deepspeed={zero_optimization: {sub_group_size: 60}}"
    split = [*run("muon_2p3_split", "muon", 3), small]
    run_processes(2, "train_runs", timeout=480, runs=[*straight, split, run("adamw_2p0", "adamw", 0)])
    resumed = [again(kind, stage) for kind, stage in RESUMED] + moved(2)
    name = cut_back(directory, "muon_2p1", "muon_as_adamw", 3)
    changed = [tiny_run(tiny_corpus, directory, name, *SIX, f"train.zero_stage={stage}") for stage in (0, 1)]
    changed.append([*run("spectral_2p3_split", "spectral", 3), small])
    faults = [{"overrides": overrides, "fault": "none", "process": 0, "step": 0} for overrides in changed]
    calls = [("train_runs", {"runs": resumed}), ("adapt_with_faults", {"runs": faults})]
    # The matrices of two blocks are dealt out evenly, as the estimate supposes.
    # With one period, what GUM keeps at its first step is the most of the run.
    more = {"gum": ["optim.gum.update_every=6"]}
    two_blocks = [[*run(f"{kind}_{stage}", kind, stage), "model.layers=2", *more.get(kind, [])] for kind, stage in HELD]
    calls += [("state_numbers", {"overrides": overrides}) for overrides in two_blocks]
    done = run_processes(2, "several", calls=calls)
    run_processes(1, "train_runs", runs=moved(1))
    held = [[process[2 + index] for process in done] for index in range(len(HELD))]
    return {"directory": directory, "errors": done[0][1], "held": dict(zip(HELD, held, strict=True))}


@pytest.fixture(scope="module")
def runs(made):
    return made["directory"]


@pytest.mark.parametrize("name", [f"{kind}_2p{stage}" for kind, stage in RESUMED])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(runs, name):
    assert same_bits(runs, name, f"{name}_again")
    assert losses(runs, f"{name}_again") == losses(runs, name)


def test_sub_groups_of_stage_3_are_dealt_out_one_by_one(runs):
    assert same_bits(runs, "muon_2p3", "muon_2p3_split")


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        ("muon", 1),
        *((kind, stage) for kind in WHOLE for stage in (1, 2)),
        *((kind, 1) for kind in RIVALS),
        ("loro", 2),
    ],
)
def test_matrices_dealt_out_are_stepped_as_at_stage_0_bit_for_bit(runs, kind, stage):
    assert same_bits(runs, f"{kind}_2p0", f"{kind}_2p{stage}")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("muon", "2p3"),
        *((kind, name) for kind in WHOLE for name in ["2p3", "1p0", *MOVES]),
        *((kind, FARTHEST) for kind in RIVALS),
        ("loro", "2p3"),
    ],
)
def test_every_stage_and_number_of_processes_is_the_same_run(runs, kind, name):
    """Also of a run that went on with other processes or at another stage after step 3."""
    assert losses(runs, f"{kind}_{name}") == pytest.approx(losses(runs, f"{kind}_2p0"), rel=1e-6)
    expected, found = saved_tensors(runs, f"{kind}_2p0", 6), saved_tensors(runs, f"{kind}_{name}", 6)
    assert expected.keys() == found.keys()
    for key in (key for key in expected if key.startswith("weight/")):
        torch.testing.assert_close(found[key], expected[key], rtol=0, atol=TOLERANCE[kind])


@pytest.fixture(scope="module")
def whole_cores(tiny_corpus, tmp_path_factory):
    """Runs with an optimizer from outside that steps whole tensor-train cores; one goes on at another stage."""
    directory = tmp_path_factory.mktemp("whole_cores")

    def run(name, stage):
        more = ["optim.kind=heavy_ball", f"train.zero_stage={stage}"]
        return tiny_run(tiny_corpus, directory, name, *SIX[:3], *more)

    runs = [run(f"s{stage}", stage) for stage in SHARPEST]
    run_processes(2, "train_with_added_optimizer", runs=runs)
    again = [run(cut_back(directory, "s1", name, 3), stage) for name, stage in (("s1_again", 1), ("s1_s3", 3))]
    run_processes(2, "train_with_added_optimizer", runs=again)
    return directory


def test_an_optimizer_from_outside_steps_whole_cores_at_every_stage(whole_cores):
    assert same_bits(whole_cores, "s0", "s1")
    assert same_bits(whole_cores, "s1", "s1_again")
    for name in ("s3", "s1_s3"):
        assert losses(whole_cores, name) == pytest.approx(losses(whole_cores, "s0"), rel=1e-6)
    tensors = saved_tensors(whole_cores, "s3", 6)
    assert "momentum_buffer/model.layers.0.self_attn.q_proj.core_1" in tensors
    assert "exp_avg/model.layers.0.self_attn.q_proj.gate_1" in tensors


def test_each_optimizer_saves_what_it_keeps(runs):
    found = {kind: kept(saved_tensors(runs, f"{kind}_2p0", 6)) for kind in KINDS}
    every = {
        "adamw": {"weight", "exp_avg", "exp_avg_sq"},
        "muon": {"weight", "momentum_buffer"},
        "spectral": {"weight", "momentum_buffer"},
        "galore": {"weight", "exp_avg", "exp_avg_sq", "projection"},
        "dion": {"weight", "momentum_buffer", "right_factor"},
        "soap": {"weight", "exp_avg", "exp_avg_sq", "left_factor", "left_basis", "right_factor", "right_basis"},
        "mlorc": {
            "weight",
            *(f"{moment}_{part}" for moment in ("exp_avg", "exp_avg_sq") for part in ("left", "values", "right")),
        },
        "mofasgd": {"weight", "left_factor", "singular_values", "right_factor"},
        "fira": {"weight", "exp_avg", "exp_avg_sq", "projection", "limited_norm"},
        "apollo": {"weight", "exp_avg", "exp_avg_sq", "limited_norm"},
        "apollo_mini": {"weight", "exp_avg", "exp_avg_sq", "limited_norm"},
        "gum": {"weight", "momentum_buffer", "projection"},
        "relora": {"weight", *(f"{adapter}{kept}" for adapter in "AB" for kept in ("", "_exp_avg", "_exp_avg_sq"))},
        "loro": {"weight", "exp_avg", "exp_avg_sq"},
    }
    assert found == {kind: every[kind] for kind in KINDS}


def test_optimizers_train_differently_and_learn(runs):
    last = {kind: losses(runs, f"{kind}_2p0")[-1] for kind in KINDS}
    assert len(set(last.values())) == len(KINDS)
    assert all(last[kind] < losses(runs, f"{kind}_2p0")[0] for kind in KINDS)


def test_a_checkpoint_of_another_optimizer_is_refused(made):
    """At stage 0, and at one where the state of AdamW is sharded."""
    assert len(made["errors"]) == 3
    for error in made["errors"][:2]:
        assert error.startswith("CheckpointError: the checkpoint's optimizer kept momentum_buffer (16, 16) of model.")
        assert "this one keeps exp_avg (16, 16), exp_avg_sq (16, 16); set optim as the run's config.yaml" in error


def test_factors_of_a_layer_that_stage_3_would_step_apart_are_refused(made):
    """A step of one depends on the others."""
    assert made["errors"][2].startswith(
        "ConfigError: deepspeed.zero_optimization.sub_group_size separates parameters of"
    )
    assert made["errors"][2].endswith("that optim.kind = spectral must update together; raise it")


@pytest.mark.parametrize(("kind", "stage"), HELD)
def test_all_processes_see_the_same_weights_and_state(made, kind, stage):
    assert len({process["digest"] for process in made["held"][kind, stage]}) == 1


@pytest.mark.parametrize(("kind", "stage"), HELD)
def test_the_fullest_process_keeps_what_was_estimated(made, kind, stage):
    """Everything at stage 0; at stages 1 and 3 its share, which the padding of slices makes larger."""
    processes = made["held"][kind, stage]
    padding = sum(process["padding"] for process in processes) / len(processes)
    fullest = max(process["kept"] for process in processes)
    assert fullest == pytest.approx(processes[0]["estimated"] + padding, abs=1)


@pytest.fixture(scope="module")
def adapted(tiny_corpus, tmp_path_factory):
    """A run whose MLPs lose ranks, with spectral steps of their cores and of dense attention, resumed after a cut."""
    directory = tmp_path_factory.mktemp("adapted")

    def run(name, stage):
        return tiny_run(tiny_corpus, directory, name, *ADAPTING, f"train.zero_stage={stage}")

    run_processes(2, "train_runs", runs=[run(f"s{stage}", stage) for stage in SHARPEST])
    again = [run(cut_back(directory, f"s{stage}", f"s{stage}_again", 5), stage) for stage in SHARPEST]
    run_processes(2, "train_runs", runs=again)
    return directory


@pytest.mark.parametrize("stage", SHARPEST)
def test_ranks_adapt_under_spectral_steps(adapted, stage):
    tensors = saved_tensors(adapted, f"s{stage}", 10)
    assert kept(tensors) == {"weight", "momentum_buffer"}
    first = saved_tensors(adapted, f"s{stage}", 5)
    assert sum(t.numel() for t in tensors.values()) < sum(t.numel() for t in first.values())
    assert "momentum_buffer/model.layers.0.mlp.up_proj.core_1" in tensors
    assert losses(adapted, f"s{stage}") == pytest.approx(losses(adapted, "s0"), rel=1e-5)
    assert losses(adapted, f"s{stage}_again") == losses(adapted, f"s{stage}")
    assert same_bits(adapted, f"s{stage}", f"s{stage}_again", step=10)
