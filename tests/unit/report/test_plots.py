"""The PNG plots, from generated logs."""

import itertools
import json
import math
from pathlib import Path

import matplotlib
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread

from comera_dist.config.reader import read_config
from comera_dist.report.live_pictures import PICTURES, due_picture
from comera_dist.report.norm_plots import MOST, draw_updates, read_updates, update_grid
from comera_dist.report.plots import HEAT_MAPS, Plots, draw_heat_map, draw_plots
from comera_dist.report.rank_plots import loss_by_size, rank_grid, trained_sizes
from comera_dist.report.records import NormsMeasured, RanksSynced, StepLogged
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


def test_plots_leave_the_settings_of_matplotlib_alone(tmp_path, monkeypatch):
    """As in a notebook, which shows pictures of its own."""
    monkeypatch.setitem(matplotlib.rcParams, "backend", "svg")
    before = dict(matplotlib.rcParams)
    draw_plots(write(tmp_path, [1000, 1000], ADAPTED[:2]))
    assert dict(matplotlib.rcParams) == before


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


def test_sizes_of_a_long_run_read_each_sync_a_few_times():
    reads = []

    class Sync(dict):
        def __getitem__(self, key):
            reads.append(key)
            return super().__getitem__(key)

    syncs = [START, *(Sync(sync(step, PLANNED, FULL, 1000 - step)) for step in range(2, 200, 2))]
    metrics = [metric(step, 1000) for step in range(1, 200)]
    assert trained_sizes(metrics, syncs) == [1000, 1000] + [1000 - (step - 1) // 2 * 2 for step in range(3, 200)]
    assert len(reads) < 4 * len(syncs)


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


NORMS = [
    {"step": 2, "update_ratio": {"model.norm": 1e-3, "lm_head": None, "model.embed_tokens": 0.0}},
    {"step": 4, "update_ratio": {"model.norm": 1e-2, "lm_head": 1e-1}},
]


def test_updates_are_a_row_each_layer():
    grid = update_grid(NORMS)
    assert grid["model.norm"] == [1e-3, 1e-2]
    assert grid["lm_head"] == [pytest.approx(float("nan"), nan_ok=True), 1e-1]
    assert all(map(math.isnan, grid["model.embed_tokens"]))


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 9, 1000])
def test_of_many_updates_as_many_are_kept_as_a_picture_can_show(count):
    records = ({"step": step, "update_ratio": {}, "grad": {}} for step in range(count))
    kept = read_updates(records, most=4)
    steps = [record["step"] for record in kept]
    assert min(count, 2) <= len(steps) <= 4
    assert steps[:1] + steps[-1:] == [0, count - 1] * bool(count)
    assert len({b - a for a, b in itertools.pairwise(steps[:-1])}) <= 1
    assert all(record.keys() == {"step", "update_ratio"} for record in kept)


def test_the_norms_of_a_long_run_are_never_read_whole(tmp_path, monkeypatch):
    directory = write(tmp_path, [1000], [START])
    lines = (json.dumps({"step": step, "update_ratio": {"lm_head": 0.1}}) + "\n" for step in range(1, 3 * MOST))
    (tmp_path / "norms.jsonl").write_text("".join(lines))
    drawn = []
    counted = HEAT_MAPS["updates"]._replace(draw=lambda axes, records: drawn.append(len(records)))
    monkeypatch.setitem(HEAT_MAPS, "updates", counted)
    draw_heat_map(directory, "updates")
    assert drawn[0] <= MOST


@pytest.mark.parametrize("norms", [NORMS, NORMS[:1], [{"step": 1, "update_ratio": {"lm_head": 0.0}}]])
def test_updates_are_drawn_on_a_log_scale_and_grey_where_there_is_none(tmp_path, norms):
    directory = write(tmp_path, [1000], [START])
    (tmp_path / "norms.jsonl").write_text("".join(json.dumps(record) + "\n" for record in norms))
    pixels = imread(draw_plots(directory)["updates"])[..., :3]
    assert (abs(pixels - to_rgb("silver")).max(-1) < 0.01).sum() > 2000
    if len(norms) > 1:  # the smallest and the largest ratio have the colours of both ends, and 1e-2 that of the middle
        for share in (0.0, 0.5, 1.0):
            assert (abs(pixels - colormaps["viridis"](share)[:3]).max(-1) < 0.01).sum() > 2000


@pytest.mark.parametrize("syncs", [[START], []], ids=["only the start", "none"])
def test_sizes_are_drawn_without_the_log_of_their_syncs(tmp_path, syncs):
    """A full disk leaves records out."""
    assert {"loss", "size", "speed"} <= draw_plots(write(tmp_path, [1000, 1000, 600, 600], syncs)).keys()


@pytest.mark.parametrize(("steps", "begin"), [((2, 10), 0), ((20, 30), 10), ((7,), 0)])
def test_updates_begin_an_interval_before_the_first_and_never_before_the_run(steps, begin):
    axes = Figure().subplots()
    draw_updates(axes, [{"step": step, "update_ratio": {"lm_head": 0.1}} for step in steps])
    assert axes.get_xlim() == (begin, steps[-1])


@pytest.mark.parametrize(("steps", "every"), [(1000, 10), (1000, 300), (95, 10), (10, 1), (7, 2)])
def test_a_run_draws_each_heat_map_about_ten_times(steps, every):
    syncs = ["ranks.adapt=true", f"ranks.sync_every={every}"]
    config = read_config(None, [f"train.steps={steps}", f"log.norms_every={every}", *syncs])
    for kind, name in ((RanksSynced, "ranks"), (NormsMeasured, "updates")):
        found = [due_picture(kind({"step": step}), config) for step in range(every, steps + 1, every)]
        drawn = [due for due in found if due is not None]
        assert min(steps // every, PICTURES) <= len(drawn) < 2 * PICTURES
        assert {due.name for due in drawn} == {name}
        assert {b.step - a.step for a, b in itertools.pairwise(drawn)} <= {drawn[0].step}
    assert due_picture(StepLogged({"step": every}, 1.0, 0.0), config) is None


@pytest.mark.parametrize("plots", [True, False])
def test_a_sync_draws_the_ranks_alone(tmp_path, plots):
    config = read_config(
        None, ["train.steps=4", "ranks.adapt=true", "ranks.sync_every=2", f"log.plots={str(plots).lower()}"]
    )
    Plots(config, write(tmp_path, [1000, 1000], ADAPTED[:2]))(RanksSynced(ADAPTED[1]))
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["ranks.png"] * plots
