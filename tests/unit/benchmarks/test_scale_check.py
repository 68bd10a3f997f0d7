"""The check of the model at scale: what its files and the page say is what its code computes."""

import re

import numpy as np
import pytest
from support import ROOT

from benchmarks import scale_check, scale_plan
from benchmarks.markdown import table
from benchmarks.report import RESULTS, reported
from benchmarks.scaling import Link

PAGE = (ROOT / "docs/scale.md").read_text()


@pytest.fixture(scope="module")
def checked():
    return scale_check.check()


def test_the_result_file_is_what_the_check_computes(checked):
    rows, line = checked
    for found, kept in zip(rows, reported("scale_check"), strict=True):
        assert found == kept | {"predicted ms": pytest.approx(kept["predicted ms"], rel=1e-3), "error": found["error"]}
    figures = re.findall(r"\d+ of \d+ within 20%", line)
    assert all(figure in (RESULTS / "scale_check.json").read_text() for figure in figures)


def test_the_page_has_the_check_and_its_shortfall(checked):
    rows = reported("scale_check")
    assert table(scale_check.shown(rows, is_busy=False)) in PAGE
    assert table(scale_check.shown(rows, is_busy=True)) in PAGE
    sizes = scale_check.errors(rows, "held out")
    within, words = sum(size <= scale_check.TARGET for size in sizes), " ".join(PAGE.split())
    assert f"Of the {len(sizes)} rows that were held out, {within} are within 20%" in words
    assert f"the mean error is {np.mean(sizes):.0%}" in words
    assert f"within {max(scale_check.errors(rows, 'fitted')):.0%}" in words
    assert f"all eight rows are within {max(scale_check.errors(rows, scale_check.DELAYED)):.0%}" in words


def test_constants_are_fitted_to_one_case_alone(monkeypatch):
    used = []

    def predicted(row, constants):
        used.append(row["case"])
        return constants.bandwidth

    monkeypatch.setattr(scale_check, "predicted", predicted)
    monkeypatch.setattr(scale_check, "checked", lambda rows, *rest: [])
    monkeypatch.setattr(scale_check, "slowdown_of", lambda *rest: used.append("stop") or 1.0)
    monkeypatch.setattr(scale_check, "summary", lambda *rest: "")
    scale_check.check()
    assert set(used[: used.index("stop")]) == {scale_check.CALIBRATION}


def test_least_squares_find_a_known_minimum():
    found = scale_check.least_squares(lambda x: np.array([x[0] ** 2 - 4, x[0] * x[1] - 6]), np.array([1.0, 1.0]))
    assert found == pytest.approx([2, 3], rel=1e-3)


def test_a_slower_machine_is_slower_in_everything_but_its_links():
    fast, slow = (scale_check.START.machine(Link(100), slowdown) for slowdown in (1.0, 2.0))
    assert slow.flops[4] == fast.flops[4] / 2
    assert (slow.bandwidth, slow.stream, slow.host_rate) == (fast.bandwidth / 2, fast.stream / 2, fast.host_rate / 2)
    assert (slow.launch, slow.waiting) == (2 * fast.launch, 2 * fast.waiting)
    assert slow.network == fast.network


def test_the_page_has_the_predicted_tables():
    """Stage 0 of the smallest shape in full; of all other rows only the sizes, because they take half a minute."""
    for name, config in scale_plan.SHAPES.items():
        for side in scale_plan.sides_of(config, scale_plan.VOCABULARY):
            assert PAGE.count(f"| {scale_plan.label(side)} |") == 4, name
            if name == "LLaMA 1B":
                row = {name: scale_plan.label(side)} | scale_plan.row(side, 0)
                assert table([row]).splitlines()[-1] in PAGE
