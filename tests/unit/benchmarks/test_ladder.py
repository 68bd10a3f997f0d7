"""The ladder of benchmarks/quality: its sides are possible, and its table follows from the runs that are there."""

import json
import math
import shutil

import pytest

import benchmarks.quality.ladder as quality_ladder
import benchmarks.quality.runs as quality_runs
from benchmarks.quality.frontiers import draw, frontier, rows_of
from benchmarks.quality.ladder import ALONE, SEEDS, Runs, run_name
from benchmarks.quality.ladders import LADDERS
from benchmarks.quality.runs import BASE, VOCABULARY, train
from benchmarks.quality.sides import RATES
from comera_dist.commands.arguments import MISTAKE_STATUS
from comera_dist.config.reader import read_config
from comera_dist.costs.of_run import estimate
from comera_dist.storage.lock import RunLock

SIDE = "dense, AdamW"


def runs(folder):
    return Runs(LADDERS["books64"], folder, folder / "runs.json")


def name(folder, side, rate, seed):
    return run_name(side, runs(folder).settings(side, rate, seed))


def finish(folder, side, rate, seed, loss, params=(266_816,), flops=(1.0,)):
    """Records a run whose folder is there, without training."""
    run = folder / name(folder, side, rate, seed)
    run.mkdir()
    (run / "summary.json").write_text(json.dumps({"val_loss": loss}))
    lines = [{"params": stored, "flops_per_token": work} for stored, work in zip(params, flops, strict=True)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    runs(folder).finish(side, rate, seed)


@pytest.mark.parametrize("which", LADDERS)
def test_every_side_is_a_possible_configuration_of_its_own(which):
    ladder = LADDERS[which]
    configs = {side: read_config(BASE, [*ladder.base, *ladder.sides[side].run(1.0)]) for side in ladder.sides}
    assert len({config.model_dump_json() for config in configs.values()}) == len(configs)
    assert len({config.train.steps for config in configs.values()}) == 1


@pytest.mark.parametrize("which", LADDERS)
def test_sides_of_fixed_ranks_can_be_measured_in_a_few_steps(which, tmp_path):
    ladder = LADDERS[which]
    for side in ladder.fixed():
        read_config(BASE, Runs(ladder, tmp_path).settings(side, 1.0, 1, *ALONE, *ladder.sides[side].alone))
    assert len(ladder.sides) - len(ladder.fixed()) == which.startswith(("books", "arena"))


def test_tensor_trains_of_the_arena_are_cut_to_the_size_of_those_with_fixed_ranks():
    ladder = LADDERS["arena64"]
    cut, fixed = (
        read_config(BASE, [*ladder.base, *ladder.sides[f"tensor train{cut}, AdamW"].run(1.0)])
        for cut in (" cut to r=d/2", "")
    )
    assert cut.ranks.target_params == estimate(fixed, vocab_size=VOCABULARY).params


@pytest.mark.parametrize("which", LADDERS)
def test_every_side_searches_the_rates_of_its_ladder(which):
    ladder = LADDERS[which]
    for side in ladder.sides.values():
        assert len({tuple(side.run(rate)) for rate in ladder.rates}) == len(ladder.rates) >= 3


def test_names_of_runs_are_names_of_folders(tmp_path):
    names = {name(tmp_path, side, 0.5, 1) for side in LADDERS["books64"].sides}
    assert len(names) == len(LADDERS["books64"].sides)
    assert all(read_config(BASE, [f"run.name={found}"]).run.name == found for found in names)


def test_a_side_is_complete_with_three_seeds_at_its_best_rate(tmp_path):
    for rate, loss in zip(RATES, (4.4, 4.1, 4.3, None), strict=True):
        assert runs(tmp_path).row(SIDE) is None
        finish(tmp_path, SIDE, rate, SEEDS[0], loss)
    finish(tmp_path, SIDE, 1.0, 2, 4.3)
    assert runs(tmp_path).row(SIDE) is None
    finish(tmp_path, SIDE, 1.0, 3, 4.2)
    row = runs(tmp_path).row(SIDE)
    assert (row["best rate"], row["validation loss"], row["lowest"], row["highest"]) == (1.0, 4.2, 4.1, 4.3)
    assert row["search on seed 1"] == "0.5: 4.400, 1: 4.100, 2: 4.300, 4: inf"


@pytest.mark.parametrize(
    ("losses", "beyond", "best"),
    [((4.4, 4.3, 4.2, 4.1), {8.0: 4.0, 16.0: 4.1}, 8.0), ((4.1, 4.2, 4.3, None), {0.25: 4.2}, 0.5)],
)
def test_a_search_goes_on_until_its_best_rate_lies_inside(tmp_path, losses, beyond, best):
    for rate, loss in zip(RATES, losses, strict=True):
        assert runs(tmp_path).searched(SIDE).lacks == rate
        finish(tmp_path, SIDE, rate, SEEDS[0], loss)
    for rate, loss in beyond.items():
        assert runs(tmp_path).searched(SIDE).lacks == rate
        finish(tmp_path, SIDE, rate, SEEDS[0], loss)
    assert runs(tmp_path).searched(SIDE).lacks is None
    for seed in SEEDS[1:]:
        assert runs(tmp_path).row(SIDE) is None
        finish(tmp_path, SIDE, best, seed, 4.2)
    assert runs(tmp_path).row(SIDE)["best rate"] == best


def test_all_runs_of_a_side_are_made(tmp_path, monkeypatch):
    """Losses fall with the rate up to 8; each run is trained once."""
    made = []

    def train(folder, run, settings):
        values = dict(setting.split("=", 1) for setting in settings)
        rate, seed = float(values["optim.lr"]) / 3e-3, int(values["run.seed"])
        made.append((round(rate, 3), seed))
        (folder / run).mkdir()
        (folder / run / "metrics.jsonl").write_text('{"params": 1, "flops_per_token": 1.0}\n')
        return abs(rate - 8)

    monkeypatch.setattr(quality_ladder, "train", train)
    runs(tmp_path).climb(SIDE, workers=2)
    assert sorted(made) == [(0.5, 1), (1.0, 1), (2.0, 1), (4.0, 1), (8.0, 1), (8.0, 2), (8.0, 3), (16.0, 1)]


def test_sizes_of_an_adapted_side_are_those_that_training_had(tmp_path):
    ladder, side, large, small = runs(tmp_path), "blocks r=3 cut to r=2, spectral", 191_380, 149_624
    finish(tmp_path, side, 1.0, 1, 4.1, [large, large, small, small], [3e6, 3e6, 1e6, 1e6])
    finish(tmp_path, side, 2.0, 1, 4.1, [large], [3e6])
    cut, uncut = (ladder.sizes(side, ladder.finished(side, rate, 1)) for rate in (1.0, 2.0))
    assert (cut["parameters"], uncut["parameters"]) == (small, large)
    assert uncut["of the blocks' matrices"] - cut["of the blocks' matrices"] == large - small
    tokens = 1000 * 4096
    assert (cut["training TFLOPs"], uncut["training TFLOPs"]) == (round(2e-6 * tokens, 1), round(3e-6 * tokens, 1))


def test_state_is_weights_gradients_and_the_numbers_of_the_optimizer(tmp_path):
    finish(tmp_path, "dense, AdamW", 1.0, 1, 4.1)
    ladder = runs(tmp_path)
    row, numbers = ladder.sizes("dense, AdamW", ladder.finished("dense, AdamW", 1.0, 1)), 266_816
    assert row["state MiB at the start"] == round(16 * numbers / 2**20, 2)
    assert row["optimizer MiB at the start"] == round(8 * numbers / 2**20, 2)  # two moments in fp32


def test_recorded_runs_are_not_repeated_and_need_no_folder(tmp_path):
    finish(tmp_path, SIDE, 1.0, 1, 4.1)
    finish(tmp_path, SIDE, 2.0, 1, None, [5, 4], [2.0, 1.0])
    for rate in (1.0, 2.0):
        shutil.rmtree(tmp_path / name(tmp_path, SIDE, rate, 1))
    assert (runs(tmp_path).finish(SIDE, 1.0, 1), runs(tmp_path).finish(SIDE, 2.0, 1)) == (4.1, math.inf)
    assert runs(tmp_path).finished(SIDE, 2.0, 1) == (math.inf, 4, 1.5)
    assert [path.name for path in tmp_path.iterdir()] == ["runs.json"]


def test_ladders_share_the_runs_whose_settings_are_equal(tmp_path):
    side = "narrow dense d=48, spectral"
    finish(tmp_path, side, 1.0, 1, 4.1)
    others = [Runs(LADDERS[which], tmp_path, tmp_path / "runs.json") for which in ("arena64", "arena64_starved")]
    assert [(run := runs.finished(side, 1.0, 1)) and run.loss for runs in others] == [4.1, None]


def test_settings_have_each_key_once(tmp_path):
    """The narrow sides repeat the width of the base."""
    settings = runs(tmp_path).settings("narrow dense d=48, spectral", 1.0, 1)
    keys = [setting.split("=")[0] for setting in settings]
    assert len(set(keys)) == len(keys)
    assert "model.d_model=48" in settings


def test_a_run_that_makes_no_step_has_not_diverged(tmp_path):
    with pytest.raises(SystemExit, match=r"wrong made no step; see .*/output/wrong\.txt"):
        train(tmp_path, "wrong", ["model.d_model=0"])


@pytest.mark.parametrize(
    ("status", "sentence"),
    [(75, "was stopped"), (-9, "ended with status -9"), (1, "ended with status 1"), (0, "ended with status 0")],
)
def test_a_run_that_was_stopped_or_failed_has_not_diverged(tmp_path, monkeypatch, status, sentence):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").touch()
    monkeypatch.setattr(quality_runs, "_pretrain", lambda *_: status)
    with pytest.raises(SystemExit, match=f"run {sentence}"):
        train(tmp_path, "run", [])


def test_a_run_that_another_process_trains_has_not_diverged(tmp_path, monkeypatch):
    """Such a start ends with the status of a divergence."""
    lock = RunLock(tmp_path / "run/run.lock")
    assert lock.acquire() is None
    (tmp_path / "run/metrics.jsonl").touch()
    monkeypatch.setattr(quality_runs, "_pretrain", lambda *_: MISTAKE_STATUS)
    with pytest.raises(SystemExit, match="run is being trained by process"):
        train(tmp_path, "run", [])
    lock.release()
    assert train(tmp_path, "run", []) == math.inf


def row(side, parameters, loss, **costs):
    return {
        "side": side,
        "parameters": parameters,
        "validation loss": loss,
        "lowest": loss - 0.01,
        "highest": loss + 0.01,
        **costs,
    }


def test_the_frontier_has_the_sides_that_no_other_beats_in_both():
    rows = [row("a", 30, 4.0), row("b", 10, 4.5), row("c", 20, 4.6), row("d", 10, 4.4), row("e", 40, 4.0)]
    assert [found["side"] for found in frontier(rows, "parameters")] == ["d", "a"]
    assert frontier([], "parameters") == []


def test_frontiers_are_drawn_from_the_tables_of_the_ladder(tmp_path):
    rows = [row("dense, AdamW", 30, 4.0, **{"training TFLOPs": 9.0}), row("b", 10, 4.5, **{"training TFLOPs": 5.0})]
    (tmp_path / "books64.json").write_text(json.dumps({"rows": rows}))
    found = rows_of("books64", 1000, tmp_path)
    assert found == rows
    draw(found, tmp_path / "without.png")
    alone = [{"side": "b", "step ms": 250, "peak MiB": 700}]
    (tmp_path / "books64_alone.json").write_text(json.dumps({"rows": alone}))
    found = rows_of("books64", 1000, tmp_path)
    assert found == [rows[0], rows[1] | {"seconds": 250.0, "peak MiB": 700}]
    draw(found, tmp_path / "with.png")
    assert (tmp_path / "with.png").stat().st_size > (tmp_path / "without.png").stat().st_size > 10_000
