"""The figures at the end of a run with rank adaptation, against numbers computed by hand."""

from dataclasses import replace

import pytest
from support import TINY

from comera_dist.config.reader import read_config
from comera_dist.costs.estimate import estimate
from comera_dist.formats.dense import DensePlan
from comera_dist.formats.tensor_train.shapes import TTShape
from comera_dist.report.lines import summary_lines
from comera_dist.report.rank_report import LayerChange, adaptation_figures, layer_changes, median_at
from comera_dist.report.tables import show_adaptation

UP, DOWN = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"
SHAPE = TTShape(6, 8, (6,), (8,), (1, 4, 1))  # two plain factors: 6·4 + 4·8 numbers and 4 gates


@pytest.fixture
def planned():
    train = SHAPE
    return {"model.embed_tokens": DensePlan(8, 6, is_embedding=True), UP: train, DOWN: train, "lm_head": train}


def metrics(*records: tuple[int, float]) -> list[dict]:
    return [{"params": params, "tokens_per_second": speed} for params, speed in records]


def test_rows_of_a_cut_layer_and_a_removed_one(planned):
    final = planned | {UP: planned[UP].with_bonds([1]), DOWN: planned[DOWN].with_bonds([0])}
    assert layer_changes(planned, final, ("*_proj",)) == [
        # 1·(6 + 8) + 1 of 48 numbers; a token costs 2·r·(6 + 8) FLOPs
        LayerChange(UP, [4], [1], 60, 15, 48 / 15, 112, 28),
        LayerChange(DOWN, [4], None, 60, 0, None, 112, 0),
    ]


def test_adapted_layers_are_shown_where_nothing_changed(planned):
    rows = layer_changes(planned, planned, ("lm_head", "model.embed*"))
    assert rows == [LayerChange("lm_head", [4], [4], 60, 60, 48 / 60, 112, 112)]


def test_speed_is_the_median_of_intervals_spent_at_one_size():
    records = metrics((9, 1.0), (9, 10.0), (9, 30.0), (9, 20.0), (5, 25.0), (5, 50.0), (5, 70.0))
    assert median_at(records, 9, "tokens_per_second") == 20.0  # the first record warms up
    assert median_at(records, 5, "tokens_per_second") == 60.0  # the first record at 5 measured steps at 9


def test_a_size_with_a_single_record_was_not_measured():
    records = metrics((9, 1.0), (9, 10.0), (5, 25.0))
    assert median_at(records, 5, "tokens_per_second") is None
    assert median_at(records[:1], 9, "tokens_per_second") is None


def figures(planned, final, records):
    config = read_config(None, [*TINY, "model.d_model=6", "model.layers=1", "model.heads=1"])
    before, after = (estimate(config, plan, 2, 64) for plan in (planned, final))
    syncs = [{"step": 0}, {"step": 1}, {"step": 2, "rebuild_seconds": 1.5}, {"step": 4, "rebuild_seconds": 2.0}]
    return before, after, adaptation_figures("Target reached.", before, after, records, syncs)


def test_figures_of_the_summary(planned):
    final = planned | {UP: planned[UP].with_bonds([1])}
    before, after, found = figures(planned, final, metrics((246, 1.0), (246, 10.0), (201, 20.0), (201, 30.0)))
    assert found == {
        "verdict": "Target reached.",
        "initial_params": 246,  # 48 of the embedding, 3·60, 3 norms of 6
        "final_params": 201,
        "tokens_per_second_before": 10.0,
        "tokens_per_second_after": 30.0,
        "flops_per_token_before": before.flops_per_token,
        "flops_per_token_after": after.flops_per_token,
        "gradient_bytes_before": 4 * 246,  # a ring of two sends 2·(1/2) of them
        "gradient_bytes_after": 4 * 201,
        "rebuilds": 2,
        "rebuild_seconds": 3.5,
    }
    assert before.flops_per_token - after.flops_per_token == 3 * (112 - 28)


@pytest.mark.parametrize("unit", ["tokens", "rows"])
def test_end_table(planned, capsys, unit):
    final = planned | {UP: planned[UP].with_bonds([1]), DOWN: planned[DOWN].with_bonds([0])}
    before, after, found = figures(planned, final, metrics((246, 1.0), (246, 1234.0), (141, 20.0)))
    long = replace(layer_changes(planned, final, (UP,))[0], planned_ranks=[8, 16, 64, 16, 8])
    show_adaptation([long, *layer_changes(planned, final, (DOWN,))], before, after, found, unit)
    lines = capsys.readouterr().out.splitlines()

    def cells(start: str) -> list[str]:
        row = next(line for line in lines if line[2:].startswith(start))
        return [cell.strip() for cell in row.strip("│").split("│")]

    assert cells("layers.0.mlp.up") == ["layers.0.mlp.up_proj", "8·16·64·16·8", "1", "60 → 15", "3.20×", "112 → 28"]
    assert cells("layers.0.mlp.down") == ["layers.0.mlp.down_proj", "4", "removed", "60 → 0", "", "112 → 0"]
    assert cells("stored")[1:] == ["246", "141"]
    assert cells("compression")[1:] == [f"{246 / 210:.2f}× larger", f"{210 / 141:.2f}×"]
    assert cells("measured") == [f"measured {unit}/s, median", "1,234", "not measured"]
    assert cells("training")[0] == f"training FLOPs per {unit[:-1]}"
    assert cells("gradient bytes")[1:] == ["984.0 B", "564.0 B"]


def test_summary_lines_name_the_plots_and_end_with_the_verdict(tmp_path):
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "loss.png").touch()
    summary = {"val_loss": 1.0, "val_bits_per_byte": 1.0, "tokens": 9, "wall_seconds": 1.0}
    summary |= {"params": 5, "dense_params": 10, "compression": 2.0}
    assert f"\nFigures: {tmp_path}/other/summary.json" in summary_lines(summary, tmp_path / "other")
    fixed = summary_lines(summary, tmp_path)
    assert "plots/loss.png; figures:" in fixed
    (tmp_path / "plots" / "size.png").touch()
    adapted = summary_lines(summary | {"adaptation": {"verdict": "Target missed."}}, tmp_path)
    assert "plots/loss.png, size.png;" in adapted
    assert adapted.splitlines()[-1] == "Target missed."
    assert len(adapted.splitlines()) == len(fixed.splitlines()) + 1
    for nothing in (None, float("nan")):
        assert "Done" not in (ended := summary_lines(summary | {"val_loss": nothing}, tmp_path))
        assert ended.startswith("Ended without a result: the validation loss is not finite")
    assert summary_lines(summary | {"adaptation": {"verdict": None}}, tmp_path).count("\n") == fixed.count("\n")
