"""The largest models that fit, against the memory estimate of the same models read from a configuration."""

import json
from functools import cache

import pytest
from support import TINY, WORKLOADS

from comera_dist.commands.estimate import main
from comera_dist.config.reader import read_config
from comera_dist.costs import largest
from comera_dist.costs.estimate import estimate
from comera_dist.costs.largest import largest_models
from comera_dist.costs.memory import estimate_memory
from comera_dist.costs.of_run import plan_run
from comera_dist.costs.scale import USABLE
from comera_dist.costs.widths import widest_fitting, widths
from comera_dist.errors import ConfigError

VOCAB = 512
# Each block takes as long as all the rest of a step, and tells no more about widths than the first.
RUN = [*TINY, "model.layers=1", "model.heads=4", "model.kv_heads=2", "train.micro_batch=2", "optim.kind=spectral"]
OVERRIDES = {
    "this run, spectral": [],
    "dense, spectral": ["model.format=dense"],
    "dense, adamw": ["model.format=dense", "optim.kind=adamw"],
    "dense, galore": ["model.format=dense", "optim.kind=galore"],
}


@pytest.fixture(autouse=True)
def few_widths(monkeypatch):
    monkeypatch.setattr(largest, "WIDEST", 512)
    monkeypatch.setattr(largest, "GROWTH", 1.7)


@pytest.fixture
def narrow_widths(few_widths, monkeypatch):
    """For tests to which it does not matter which width is found."""
    monkeypatch.setattr(largest, "WIDEST", 64)


@cache  # a width that is too great for one GPU may be the widest for the next
def peak(side, width):
    sizes = [f"model.d_model={width}", f"model.d_ff={max(8, 24 * width // 16 // 8 * 8)}", f"model.heads={width // 4}"]
    config = read_config(None, [*RUN, "train.zero_stage=0", *OVERRIDES[side], *sizes, f"model.kv_heads={width // 8}"])
    plan = plan_run(config, VOCAB, 1)
    costs = estimate(config, plan, 1, config.tokens_per_forward(1))
    return costs.params, costs.state_bytes_per_process, estimate_memory(config, plan, costs, 1).peak


def test_the_widest_models_fit_and_wider_ones_do_not():
    sizes = (0.0005, 0.0015)
    found = largest_models(read_config(None, RUN), VOCAB, sizes)
    assert list(found) == list(sizes)
    for size, models in found.items():
        assert [model.side for model in models] == list(OVERRIDES)
        for model in models:
            assert (model.params, model.state_bytes, model.peak_bytes) == peak(model.side, model.width)
            wider = next(width for width in widths(4 * 2, largest.GROWTH, largest.WIDEST) if width > model.width)
            assert model.peak_bytes <= USABLE * 1e9 * size < peak(model.side, wider)[-1]
    assert found[0.0015][0].width > found[0.0005][0].width


def test_too_little_memory_is_refused():
    with pytest.raises(ConfigError, match=r"narrowest model .* give more GB to --fits"):
        largest_models(read_config(None, RUN), VOCAB, [1e-5])


def test_other_models_are_refused():
    with pytest.raises(ConfigError, match="--fits widens decoders"):
        largest_models(read_config(None, WORKLOADS["masked_lm"]), None, [24])


@pytest.mark.parametrize("words", ["0", "-24", "inf", "24,,80", "much"])
def test_the_command_refuses_other_sizes(words, monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, tmp_path, words) == 2
    assert "--fits" in capsys.readouterr().err


def test_the_command_prints_a_row_for_each_side(narrow_widths, monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, tmp_path, "0.001,0.002", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["gigabytes"] for row in rows] == [0.001] * 4 + [0.002] * 4
    assert run(monkeypatch, tmp_path, "0.001", "train.teacher.run=runs/a") == 0
    shown = capsys.readouterr().out
    assert "trains in 0.001 GB" in shown
    assert "Without the weights and the forward pass of the teacher." in shown


def run(monkeypatch, tmp_path, sizes, *words):
    (tmp_path / "empty.yaml").write_text("{}")
    command = ["estimate", "--config", str(tmp_path / "empty.yaml"), "--vocab-size", str(VOCAB), f"--fits={sizes}"]
    monkeypatch.setattr("sys.argv", [*command, *words, *RUN])
    try:
        return main()
    except SystemExit as end:  # of argparse
        return end.code


def test_an_optimizer_that_updates_no_dense_matrices_is_not_that_of_a_dense_model():
    config = read_config(None, [*RUN, "optim.kind=loro", "model.format=low_rank", "tensor.rank=2"])
    (models,) = largest_models(config, VOCAB, (0.003,)).values()
    assert [model.side for model in models] == ["this run, loro", "dense, adamw", "dense, galore"]


def test_moments_are_narrow_where_the_optimizer_can_have_them():
    wide, narrow = (
        {side.side: side for side in largest_models(read_config(None, [*RUN, *more]), VOCAB, (0.003,))[0.003]}
        for more in ([], ["optim.moments=8bit"])
    )
    assert wide["dense, galore"] == narrow["dense, galore"]
    bytes_of = [side["dense, adamw"].state_bytes / side["dense, adamw"].params for side in (wide, narrow)]
    assert bytes_of == pytest.approx([4 + 4 + 8, 4 + 4 + 2 * (1 + 4 / 256)], rel=0.01)


def test_memory_that_falls_at_a_greater_width_is_found():
    needed = {8: 1, 16: 4, 24: 3, 32: 6, 40: 5, 80: 2}
    for budget, found in ((0.5, None), (1, 8), (2, 8), (3, 24), (4, 24), (5, 40), (6, 80)):
        assert widest_fitting([*needed], lambda width, budget=budget: needed[width] > budget, further=1.6) == found


def test_a_single_key_head_stays_one(narrow_widths):
    found = largest_models(read_config(None, [*RUN, "model.kv_heads=1"]), VOCAB, (0.001,))[0.001]
    assert {model.width % 4 for model in found} == {0}
    narrow, wide = (largest._widened(read_config(None, [*RUN, "model.kv_heads=1"]), width) for width in (8, 64))
    assert [config.model.kv_heads for config in (narrow, wide)] == [1, 1]
    assert [config.model.heads for config in (narrow, wide)] == [2, 16]
