"""The ladder of benchmarks/quality: its sides are possible, and its table follows from the runs that are there."""

import json
import math
import shutil

import pytest

from benchmarks.quality.frontiers import draw, frontier, rows_of
from benchmarks.quality.ladder import SEEDS, Runs
from benchmarks.quality.ladders import LADDERS
from benchmarks.quality.runs import BASE, train
from benchmarks.quality.sides import RATES
from comera_dist.config.reader import read_config

SIDE = "dense, AdamW"


def runs(folder):
    return Runs("books64", LADDERS["books64"], folder, folder / "books64_runs.json")


def finish(folder, side, rate, seed, loss, params=()):
    """Records a run whose folder is there, without training."""
    run = folder / runs(folder).run_name(side, rate, seed)
    run.mkdir()
    (run / "summary.json").write_text(json.dumps({"val_loss": loss}))
    (run / "metrics.jsonl").write_text("".join(json.dumps({"params": number}) + "\n" for number in params or [266_816]))
    runs(folder).finish(side, rate, seed)


@pytest.mark.parametrize("name", LADDERS)
def test_every_side_is_a_possible_configuration_of_its_own(name):
    ladder = LADDERS[name]
    configs = {side: read_config(BASE, [*ladder.base, *ladder.sides[side].run(1.0)]) for side in ladder.sides}
    assert len({config.model_dump_json() for config in configs.values()}) == len(configs)
    assert len({config.train.steps for config in configs.values()}) == 1


@pytest.mark.parametrize("name", LADDERS)
def test_every_side_searches_four_rates(name):
    for side in LADDERS[name].sides.values():
        assert len({tuple(side.run(rate)) for rate in RATES}) == 4


def test_names_of_runs_are_names_of_folders(tmp_path):
    names = {runs(tmp_path).run_name(side, 0.5, 1) for side in LADDERS["books64"].sides}
    assert len(names) == len(LADDERS["books64"].sides)
    assert all(read_config(BASE, [f"run.name={name}"]).run.name == name for name in names)


def test_a_side_is_complete_with_three_seeds_at_its_best_rate(tmp_path):
    for rate, loss in zip(RATES, (4.4, 4.1, 4.3, None), strict=True):
        assert runs(tmp_path).row(SIDE) is None
        finish(tmp_path, SIDE, rate, SEEDS[0], loss)
    finish(tmp_path, SIDE, 1.0, 2, 4.3)
    assert runs(tmp_path).row(SIDE) is None
    finish(tmp_path, SIDE, 1.0, 3, 4.2)
    row = runs(tmp_path).row(SIDE)
    assert (row["best rate"], row["validation loss"], row["lowest"], row["highest"]) == (1.0, 4.2, 4.1, 4.3)
    assert row["search on seed 1"] == "4.400, 4.100, 4.300, inf"


def test_sizes_of_an_adapted_side_are_those_that_training_had(tmp_path):
    ladder, side, large, small = runs(tmp_path), "blocks r=3 cut to r=2, spectral", 191_380, 149_624
    finish(tmp_path, side, 1.0, 1, 4.1, [large, large, small, small])
    finish(tmp_path, side, 2.0, 1, 4.1, [large])
    cut, uncut = (ladder.sizes(side, ladder.finished(side, rate, 1)) for rate in (1.0, 2.0))
    assert (cut["parameters"], uncut["parameters"]) == (small, large)
    assert uncut["of the blocks' matrices"] - cut["of the blocks' matrices"] == large - small
    flops = 6 * (large - small) / 2 * 1000 * 4096
    assert uncut["training TFLOPs"] - cut["training TFLOPs"] == pytest.approx(flops / 1e12, abs=0.1)


def test_recorded_runs_are_not_repeated_and_need_no_folder(tmp_path):
    finish(tmp_path, SIDE, 1.0, 1, 4.1)
    finish(tmp_path, SIDE, 2.0, 1, None, [5, 4])
    for folder in list(tmp_path.glob("books64_dense*")):
        shutil.rmtree(folder)
    assert (runs(tmp_path).finish(SIDE, 1.0, 1), runs(tmp_path).finish(SIDE, 2.0, 1)) == (4.1, math.inf)
    assert runs(tmp_path).finished(SIDE, 2.0, 1) == (math.inf, 4, 4.5)
    assert [path.name for path in tmp_path.iterdir()] == ["books64_runs.json"]


def test_a_run_that_makes_no_step_has_not_diverged(tmp_path):
    with pytest.raises(SystemExit, match=r"wrong made no step; see .*/output/wrong\.txt"):
        train(tmp_path, "wrong", ["model.d_model=0"])


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
