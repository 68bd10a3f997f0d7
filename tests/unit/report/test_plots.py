"""The PNG plots, from generated logs."""

import json
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from comera_dist.report.plots import draw_plots
from comera_dist.report.rank_plots import loss_by_size, rank_grid, trained_sizes
from comera_dist.storage.run_directory import RunDirectory

PLANNED = {"model.embed_tokens": [4], "model.layers.0.mlp.up_proj": [4, 8, 4], "lm_head": []}
UP = "model.layers.0.mlp.up_proj"


def metric(step: int, params: int, **more) -> dict:
    return {"step": step, "tokens": 10 * step, "loss": 9 / step, "tokens_per_second": 100.0, "params": params, **more}


def sync(step: int, ranks: dict, effective: dict, params: int, **more) -> dict:
    record = {"step": step, "stage": "early", "size": params - 100, "target": None, "cut": 0, "ranks": ranks}
    return record | {"effective": effective, "params": params, **more}


FULL = {"model.embed_tokens": [4.0], UP: [4.0, 6.0, 2.0], "lm_head": []}
CUT = {"model.embed_tokens": [4], UP: [4, 2, 4], "lm_head": []}
REMOVED = {"model.embed_tokens": [4], UP: [0, 0, 0], "lm_head": []}
GONE = {"model.embed_tokens": [4], "lm_head": []}

START = {"step": 0, "ranks": PLANNED}
ADAPTED = [START, sync(2, PLANNED, FULL, 1000), sync(4, CUT, FULL, 600, stage="late", target=450.0, cut=6)]
EMPTIED = [
    *ADAPTED[:2],
    sync(4, REMOVED, FULL, 400, stage="late", target=450.0, cut=16),
    sync(6, GONE, {"model.embed_tokens": [3.0], "lm_head": []}, 400, stage="settled", target=450.0),
]


def write(path: Path, params: list[int], syncs: list[dict]) -> RunDirectory:
    """Logs of a run with a record each step, `params` left after each; the last one is evaluated."""
    directory = RunDirectory(path)
    directory.plots.mkdir()
    metrics = [metric(step, size) for step, size in enumerate(params, start=1)]
    metrics[-1]["val_loss"] = 2.0
    for name, records in (("metrics.jsonl", metrics), ("ranks.jsonl", syncs)):
        (path / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    return directory


@pytest.mark.parametrize(
    ("params", "syncs", "names"),
    [
        ([1000, 1000, 1000, 600, 600], ADAPTED, {"loss", "speed", "ranks", "size"}),
        ([1000, 1000, 1000, 400, 400, 400], EMPTIED, {"loss", "speed", "ranks", "size"}),
        ([1000, 1000], ADAPTED[:2], {"loss", "speed", "ranks"}),
        ([1000, 1000], [START], {"loss", "speed"}),
        ([1000, 1000], [{"step": 0, "ranks": {}}], {"loss", "speed"}),
    ],
    ids=["adapted", "removed layer", "nothing cut", "fixed", "dense"],
)
def test_plots_are_those_that_the_run_has_something_for(tmp_path, params, syncs, names):
    paths = draw_plots(write(tmp_path, params, syncs))
    assert set(paths) == names == {path.stem for path in (tmp_path / "plots").iterdir()}
    for name, path in paths.items():
        assert Path(path) == tmp_path / "plots" / f"{name}.png"
        assert imread(path)[..., :3].std() > 0.05, f"{path} is blank"


def test_heat_map_shows_ranks_left_as_shares_of_the_plan():
    assert rank_grid(ADAPTED) == [
        [1, 1, 1],
        [1, 1, 1],
        [1, 6 / 8, 2 / 8],  # measured before the cut to 2
        [1, 2 / 4, 2 / 4],
    ]


def test_a_removed_layer_is_zero_from_its_removal_on():
    assert rank_grid(EMPTIED) == [
        [1, 1, 1, 3 / 4],
        [1, 1, 0, 0],
        [1, 6 / 8, 0, 0],
        [1, 2 / 4, 0, 0],
    ]


def test_the_loss_of_a_step_belongs_to_the_size_before_its_cut():
    metrics = [metric(step, params) for step, params in ((1, 1000), (3, 1000), (4, 600), (5, 600))]
    assert trained_sizes(metrics, ADAPTED) == [1000, 1000, 1000, 600]


def test_the_loss_of_a_size_is_the_mean_of_its_last_records():
    sizes, losses = [9, 9, 9, 9, 5, 5, 9], [100.0, 1.0, 2.0, 6.0, 4.0, 5.0, 7.0]
    assert loss_by_size(sizes, losses) == [(9, 3.0), (5, 4.5), (9, 7.0)]


@pytest.mark.parametrize(
    ("params", "syncs", "colours"),
    [
        ([1000, 1000, 1000, 600], ADAPTED, {"tab:red", "tab:orange"}),
        ([1000, 1000, 1000, 400], EMPTIED, {"tab:red", "tab:orange", "silver"}),
        ([1000, 1000], ADAPTED[:2], set()),
    ],
    ids=["adapted", "removed layer", "nothing cut"],
)
def test_cuts_late_stage_and_removed_layers_are_marked(tmp_path, params, syncs, colours):
    pixels = imread(draw_plots(write(tmp_path, params, syncs))["ranks"])[..., :3]
    least = {"tab:red": 20, "tab:orange": 20, "silver": 2000}  # pixels; edges of letters are grey too
    assert {mark for mark, n in least.items() if (abs(pixels - to_rgb(mark)).max(-1) < 0.01).sum() > n} == colours
