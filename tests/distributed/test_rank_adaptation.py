"""Rank adaptation is the same training on any number of processes at any ZeRO stage, resumed or not, or it stops."""

import json

import pytest
import torch
from forked import run_processes
from support import cut_back, losses, metrics, saved_tensors, tiny_run

# The set-up that many tests share counts into the time of the first of them.
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]
STAGES = (0, 1, 2, 3)
# Early stage to step 4, late stage to step 10 with cuts at steps 6 and 10, settled until step 14.
ADAPTING = [
    "ranks.adapt=true",
    "ranks.layers=['*_proj']",
    "ranks.sync_every=2",
    "ranks.policy.patience=1",
    "ranks.late_end=0.7",
    "ranks.target_compression=1.6",
    "tensor.rank=6",
    "optim.lr=0.01",
    "train.steps=14",
    "checkpoint.every=3",
    "checkpoint.keep=99",
]
GROWN = [
    "ranks.policy.grow=1",
    "ranks.policy.threshold=0.4",
    "ranks.policy.shrink_when=0.01",
    "ranks.target_compression=2.5",
]
FAN_IN = "optim.core_rates=fan_in"
# Steps from which a stage resumes; 3 and 9 are a step after a sync at which all gates began anew.
RESUMED = {0: (9,), 1: (3, 12), 2: (9,), 3: (3, 9)}
FAN_IN_STAGES = (1, 3)
# Where one process dies.
KILLED = ("after the decision", "after export", "between engines", "before the moments", "after the moments")


def adapting(corpus, directory, name, *overrides):
    return tiny_run(corpus, directory, name, *ADAPTING, *overrides)


def syncs(directory, name):
    records = [json.loads(line) for line in (directory / name / "ranks.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "rebuild_seconds"} for record in records]


def dense_weights(directory, name, step):
    """The product of each layer's cores and gates, and every other parameter as it is."""
    tensors = saved_tensors(directory, name, step)
    weights = {key.removeprefix("weight/"): t for key, t in tensors.items() if key.startswith("weight/")}
    merged = {}
    for key, value in weights.items():
        layer, _, part = key.rpartition(".")
        if part == "core_1":
            merged[layer], k = value.flatten(0, -2), 2
            while f"{layer}.core_{k}" in weights:
                gated = merged[layer] * weights[f"{layer}.gate_{k - 1}"]
                merged[layer] = torch.tensordot(gated, weights[f"{layer}.core_{k}"].flatten(1, -2), 1).flatten(0, 1)
                k += 1
        elif not part.startswith(("core_", "gate_")):
            merged[key] = value
    return merged


@pytest.fixture(scope="module")
def runs(tiny_corpus, tmp_path_factory):
    """The same run on one process, on two at each stage, and on four."""
    directory = tmp_path_factory.mktemp("ranks")

    def run(name, *overrides):
        return adapting(tiny_corpus, directory, name, *overrides)

    variants = {
        "grown": GROWN,
        "removed": [
            "model.layers=2",
            "ranks.removable=['model.layers.0.mlp.*','model.layers.1.self_attn.q_proj']",
            "ranks.target_compression=3",
            "ranks.pressure=1.0",
        ],
    }
    single = [run("one", "train.zero_stage=0")]
    single += [run(f"one_{name}", *options, "train.zero_stage=0") for name, options in variants.items()]
    single.append(run("fan_in_one", FAN_IN, "train.zero_stage=0"))
    run_processes(1, "train_runs", runs=single)
    double = [run(f"s{stage}", f"train.zero_stage={stage}") for stage in STAGES]
    double.append(run("s3_split", "train.zero_stage=3", "deepspeed={zero_optimization: {sub_group_size: 60}}"))
    double.append(run("bf16", "train.zero_stage=1", "train.precision=bf16"))
    double += [run(name, *options, "train.zero_stage=1") for name, options in variants.items()]
    double += [run(f"fan_in_s{stage}", FAN_IN, f"train.zero_stage={stage}") for stage in FAN_IN_STAGES]
    run_processes(2, "train_runs", runs=double)
    run_processes(4, "train_runs", runs=[run("four", "train.zero_stage=1")])
    return directory


def test_the_run_goes_through_all_stages_and_cuts_more_than_once(runs):
    records = syncs(runs, "one")[1:]
    assert [record["stage"] for record in records] == ["early"] + ["late"] * 4 + ["settled"] * 2
    assert sum(record["cut"] > 0 for record in records) >= 2
    params = [record["params"] for record in metrics(runs, "one")]
    assert params[0] > params[7] > params[-1]


def test_counted_flops_are_those_of_the_model_that_made_the_step(runs):
    """A record comes after the cut of its step, whose FLOPs are those of the record before."""
    records = metrics(runs, "one")
    counted = [record["flops_per_second"] / record["tokens_per_second"] for record in records]
    assert counted == pytest.approx([records[0]["flops_per_token"]] + [r["flops_per_token"] for r in records[:-1]])
    assert counted[0] > counted[7] > counted[-1]


@pytest.mark.parametrize("name", ["s0", "s1", "s2", "s3", "s3_split", "four"])
def test_every_stage_and_number_of_processes_is_the_run_of_one_process(runs, name):
    assert losses(runs, name) == pytest.approx(losses(runs, "one"), rel=2e-6)
    for found, expected in zip(syncs(runs, name), syncs(runs, "one"), strict=True):
        assert found["ranks"] == expected["ranks"]


@pytest.mark.parametrize("name", ["grown", "removed"])
def test_grown_and_removed_ranks_are_alike_too(runs, name):
    assert losses(runs, name) == pytest.approx(losses(runs, f"one_{name}"), rel=2e-6)
    assert [r["ranks"] for r in syncs(runs, name)] == [r["ranks"] for r in syncs(runs, f"one_{name}")]


@pytest.mark.parametrize("stage", FAN_IN_STAGES)
def test_rates_of_cores_follow_their_ranks_alike_at_every_stage(runs, stage):
    assert losses(runs, f"fan_in_s{stage}") == pytest.approx(losses(runs, "fan_in_one"), rel=2e-6)
    assert syncs(runs, f"fan_in_s{stage}")[-1]["ranks"] == syncs(runs, "fan_in_one")[-1]["ranks"]
    assert losses(runs, "fan_in_one") != losses(runs, "one")


def test_growth_stays_within_the_planned_size(runs):
    records = syncs(runs, "one_grown")[1:]
    assert sum(record["added"] for record in records) > 0
    assert max(record["size"] for record in records) <= syncs(runs, "one")[1]["size"]


def test_a_removable_layer_vanishes_from_model_and_checkpoint(runs):
    ranks = syncs(runs, "one_removed")[-1]["ranks"]
    assert "model.layers.1.self_attn.q_proj" not in ranks
    assert not any("layers.1.self_attn.q_proj" in name for name in saved_tensors(runs, "one_removed", 14))


@pytest.mark.parametrize("name", ["s0", "s1", "s2", "s3", "four"])
def test_weights_after_the_cuts_are_those_of_one_process(runs, name):
    """As whole weights: cores are unique only up to the gauge, where rounding may turn nearly equal directions."""
    expected, found = dense_weights(runs, "one", 14), dense_weights(runs, name, 14)
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-3, atol=1e-5, msg=key)


def test_gates_do_not_drift(runs):
    assert all(record["drift"] == 0.0 for name in ("s0", "s1", "s2", "s3", "four") for record in syncs(runs, name)[1:])


def test_bf16_adapts_too(runs):
    assert syncs(runs, "bf16")[-1]["stage"] == "settled"
    assert losses(runs, "bf16") == pytest.approx(losses(runs, "one"), rel=2e-2)


def test_target_is_reached_and_the_summary_says_so(runs):
    summary = json.loads((runs / "one/summary.json").read_text())
    dense = 4 * 16 * 16 + 3 * 16 * 24
    stored = sum(
        tensor.numel()
        for name, tensor in saved_tensors(runs, "one", 14).items()
        if name.startswith("weight/") and "_proj." in name
    )
    assert stored == syncs(runs, "one")[-1]["size"]
    assert dense / stored == pytest.approx(1.6, rel=0.02)
    assert summary["adaptation"]["verdict"].startswith("Target reached")


def before_policies(directory, name, step):
    """Makes the run's checkpoint one of the time before `ranks.policy`: its keys and its counter lay elsewhere."""
    manifest = directory / name / f"checkpoints/step_{step:07d}/manifest.json"
    record = json.loads(manifest.read_text())
    keys, ranks = record["run"]["config"]["ranks"], record["run"]["ranks"]
    keys |= {key: value for key, value in keys.pop("policy").items() if key != "kind"}
    ranks["below"] = ranks.pop("policy")["counts"]["below"]
    del record["sha256"]
    record["format"] = 1  # which needs no hash
    manifest.write_text(json.dumps(record))
    return name


@pytest.fixture(scope="module")
def resumed(runs, tiny_corpus):
    """Runs cut back to before, between and after the cuts, and resumed by new processes."""
    again = []
    for stage, steps in RESUMED.items():
        for step in steps:
            cut_back(runs, f"s{stage}", f"s{stage}_from_{step}", step)
            again.append(adapting(tiny_corpus, runs, f"s{stage}_from_{step}", f"train.zero_stage={stage}"))
    again.append(adapting(tiny_corpus, runs, cut_back(runs, "one", "one_on_two", 9), "train.zero_stage=3"))
    moved = cut_back(runs, "fan_in_one", "fan_in_one_on_two", 9)
    again.append(adapting(tiny_corpus, runs, moved, FAN_IN, "train.zero_stage=2"))
    for stage in FAN_IN_STAGES:
        name = cut_back(runs, f"fan_in_s{stage}", f"fan_in_s{stage}_from_9", 9)
        again.append(adapting(tiny_corpus, runs, name, FAN_IN, f"train.zero_stage={stage}"))
    run_processes(2, "train_runs", runs=again)
    single = [adapting(tiny_corpus, runs, cut_back(runs, "s3", "s3_on_one", 9), "train.zero_stage=0")]
    moved = cut_back(runs, "fan_in_s1", "fan_in_s1_on_one", 9)
    single.append(adapting(tiny_corpus, runs, moved, FAN_IN, "train.zero_stage=0"))
    old = before_policies(runs, cut_back(runs, "one_grown", "one_of_old", 9), 9)
    # As its command was: the old names of GROWN's keys.
    renamed = [option.replace("ranks.policy.", "ranks.") for option in GROWN]
    single.append(adapting(tiny_corpus, runs, old, *renamed, "train.zero_stage=0"))
    run_processes(1, "train_runs", runs=single)
    return runs


@pytest.mark.parametrize(
    ("name", "stage", "step"),
    [
        *(("", stage, step) for stage, steps in RESUMED.items() for step in steps),
        *(("fan_in_", stage, 9) for stage in FAN_IN_STAGES),
    ],
)
def test_resume_across_cuts_is_bit_for_bit(resumed, name, stage, step):
    straight, again = f"{name}s{stage}", f"{name}s{stage}_from_{step}"
    expected, found = saved_tensors(resumed, straight, 14), saved_tensors(resumed, again, 14)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert losses(resumed, again) == losses(resumed, straight)
    assert syncs(resumed, again) == syncs(resumed, straight)


def test_a_run_of_an_earlier_version_goes_on_bit_for_bit(resumed):
    expected, found = saved_tensors(resumed, "one_grown", 14), saved_tensors(resumed, "one_of_old", 14)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert syncs(resumed, "one_of_old") == syncs(resumed, "one_grown")


@pytest.mark.parametrize("stage", [stage for stage, steps in RESUMED.items() if 3 in steps])
def test_gates_count_their_steps_from_the_last_sync_that_balanced(resumed, stage):
    """That is at steps 2, 4, … 10; the ranks are settled then."""
    for name, steps in ((f"s{stage}", (3, 6, 9, 12, 14)), (f"s{stage}_from_3", (6, 9, 12, 14))):
        for step in steps:
            manifest = resumed / name / f"checkpoints/step_{step:07d}/manifest.json"
            found = json.loads(manifest.read_text())
            assert (found["optimizer_step"], found["gate_step"]) == (step, step - min(10, step // 2 * 2))


@pytest.mark.parametrize("name", ["one_on_two", "s3_on_one", "fan_in_one_on_two", "fan_in_s1_on_one"])
def test_resume_in_the_late_stage_on_other_processes(resumed, name):
    straight = "fan_in_one" if name.startswith("fan_in") else "one"
    assert losses(resumed, name) == pytest.approx(losses(resumed, straight), rel=2e-6)
    assert syncs(resumed, name)[-1]["ranks"] == syncs(resumed, straight)[-1]["ranks"]


@pytest.fixture(scope="module")
def faults(tiny_corpus, tmp_path_factory):
    """The errors that ended disturbed runs, by number of processes, fault and stage, as every process saw them."""
    directory = tmp_path_factory.mktemp("faults")
    # The bound is out of reach, so that the loss decides the branch.
    gates, loss = [("gate", stage, []) for stage in STAGES], ("loss", 1, ["ranks.loss_bound=4.0"])
    errors = {}
    for count, cases in ((2, [*gates, loss]), (4, [gates[3]])):
        runs = [
            {
                "overrides": adapting(
                    tiny_corpus, directory, f"{fault}{stage}_{count}", f"train.zero_stage={stage}", *more
                ),
                "fault": fault,
                "process": count - 1,
                "step": 4 if fault == "gate" else 5,
            }
            for fault, stage, more in cases
        ]
        seen = zip(*run_processes(count, "adapt_with_faults", runs=runs), strict=True)
        errors |= {(count, fault, stage): each for (fault, stage, _), each in zip(cases, seen, strict=True)}
    return errors


@pytest.mark.parametrize(("count", "stage"), [*((2, stage) for stage in STAGES), (4, 3)])
def test_a_gate_changed_on_one_process_is_caught_and_named(faults, stage, count):
    for error in faults[count, "gate", stage]:
        assert error.startswith("RankDivergence: gate 1 on bond 2 of model.layers.0.mlp.up_proj differs by 0.")
        assert f"process {count - 1} has 1." in error


def test_another_loss_on_one_process_is_caught_at_the_next_sync(faults):
    for error in faults[2, "loss", 1]:
        assert error.startswith("RankDivergence: processes disagree about the objective")


def test_small_drift_is_averaged_away(tiny_corpus, tmp_path):
    run = adapting(tiny_corpus, tmp_path, "fault", "train.zero_stage=0", "ranks.drift_tolerance=0.5", "train.steps=4")
    run += ["ranks.target_compression=null"]
    assert run_processes(2, "adapt_with_fault", overrides=run, fault="gate", process=1, step=2) == ["no error"] * 2
    assert [record["drift"] for record in syncs(tmp_path, "fault")[1:]] == [pytest.approx(0.125), 0.0]


@pytest.fixture(scope="module")
def killed(runs, tiny_corpus):
    """Runs of which one process died at a point of the first cut, resumed by new processes."""
    again = []
    for point in KILLED:
        run = adapting(tiny_corpus, runs, point.replace(" ", "_"), "train.zero_stage=1")
        with pytest.raises(AssertionError, match="failed"):
            run_processes(2, "adapt_and_die", overrides=run, point=point, process=1)
        again.append(run)
    run_processes(2, "train_runs", runs=again)
    return runs


@pytest.mark.parametrize("point", KILLED)
def test_a_kill_at_any_point_of_a_cut_loses_nothing(killed, point):
    expected, found = saved_tensors(killed, "s1", 14), saved_tensors(killed, point.replace(" ", "_"), 14)
    assert all(torch.equal(expected[key], found[key]) for key in expected)


SLOW_AVERAGE = ["optim.betas=[0.9,0.999]", "ranks.pressure=0"]
TURNS = {0: 2, 1: 4, 2: 2, 3: 4}  # of two rebuilds each, by stage
AT_ONCE = {0: 1 << 20, 1: 100, 2: 1, 3: 1000}  # all in one exchange, or a parameter in each and more


@pytest.fixture(scope="module")
def shrunk(tiny_corpus, tmp_path_factory):
    """What rebuilds in a row reported, by stage and process; one launch of two processes for all of them."""
    directory = tmp_path_factory.mktemp("shrink")
    runs = [
        {
            "overrides": adapting(
                tiny_corpus, directory, f"s{stage}", f"train.zero_stage={stage}", "tensor.rank=8", *SLOW_AVERAGE
            ),
            "times": TURNS[stage],
            "at_once": AT_ONCE[stage],
        }
        for stage in STAGES
    ]
    reports = run_processes(2, "shrink_each_repeatedly", runs=runs)
    return {stage: [report[stage] for report in reports] for stage in STAGES}


@pytest.mark.parametrize("stage", STAGES)
def test_the_shrunk_model_is_the_masked_one(shrunk, stage):
    first = shrunk[stage][0]
    assert first["cut"] == pytest.approx(first["masked"], rel=1e-6)
    assert first["params"] == sorted(first["params"], reverse=True)
    assert first["params"][-1] < first["params"][0]


@pytest.mark.parametrize("stage", STAGES)
def test_the_balanced_model_is_the_one_before(shrunk, stage):
    assert shrunk[stage][0]["balanced"] == pytest.approx(shrunk[stage][0]["cut"], rel=1e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_the_first_update_of_balanced_gates_is_that_of_a_fresh_adam(shrunk, stage):
    """The learning rate, whatever the gradient."""
    updates = [update for report in shrunk[stage] for update in report["gate_updates"]]
    assert updates == pytest.approx([1.0] * len(updates), rel=1e-3)


@pytest.mark.parametrize("stage", STAGES)
def test_masters_and_moments_are_bit_identical_on_all_processes(shrunk, stage):
    assert shrunk[stage][0]["digests"] == shrunk[stage][1]["digests"]
    assert len(set(shrunk[stage][0]["digests"])) == TURNS[stage]


@pytest.mark.parametrize("stage", STAGES)
def test_closed_engines_leave_neither_memory_nor_hooks(shrunk, stage):
    for report in shrunk[stage]:
        assert report["alive"] == [0] * (2 * TURNS[stage]), "old models, engines or optimizers are still in memory"
        assert len(set(report["hooks"])) == 1
        resident = report["resident_mebibytes"]
        assert resident[-1] - resident[TURNS[stage] // 2] < 10, "resident memory grows from rebuild to rebuild"
