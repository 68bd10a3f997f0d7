"""The page that compares runs, from generated directories: well formed, in one piece, with figures known by hand."""

import os
import re
from xml.etree import ElementTree

import pytest
from compared_runs import NORMS, START, SYNCS, finished, metric, write_run
from matplotlib.figure import Figure

from comera_dist.commands.compare import main, write_comparison
from comera_dist.errors import RunDirectoryError
from comera_dist.report.compare.charts import draw_losses, loss_charts
from comera_dist.report.compare.differences import configuration_differences
from comera_dist.report.compare.figures import figure_rows
from comera_dist.report.compare.run_files import read_run, read_runs
from comera_dist.report.html.drawing import COLOURS


def page_of(tmp_path, *runs):
    """The text of the page and its elements; the parser takes well-formed text alone."""
    write_comparison(list(runs), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    return text, ElementTree.fromstring(text)


def table(rows):
    return {row.name: row.cells for row in rows}


def test_figures_are_those_of_the_files(tmp_path):
    unfinished = write_run(tmp_path / "b", records=[metric(1), metric(2, val_loss=None, mfu=0.25), metric(3, mfu=0.75)])
    runs = read_runs([finished(tmp_path / "a"), unfinished, write_run(tmp_path / "c")])
    assert table(figure_rows(runs)) == {
        "progress": ["finished", "step 3, 30%", "no step is logged"],
        "data read": ["50 tokens", "30 tokens", "–"],
        "validation loss": ["2.2500", "–", "–"],
        "validation auc": ["0.5000", "–", "–"],
        "training loss": ["1.8000", "3.0000", "–"],
        "parameters": ["600", "600", "–"],
        "parameters of the dense model": ["2,400", "–", "–"],
        "size": ["4.00× smaller", "–", "–"],
        "training FLOPs per token": ["3 k", "3 k", "–"],
        "share of the peak (MFU)": ["–", "75.0%", "–"],
        "tokens a second": ["350", "250", "–"],  # the first record includes the warm-up
        "milliseconds a step": ["1,000.0", "1,000.0", "–"],
        "peak memory of the first process": ["5 MiB", "3 MiB", "–"],
        "time of all starts": ["1:15", "–", "–"],
        "processes": ["2", "2", "2"],
        "starts": ["2", "2", "2"],
        "commit": ["0123456789ab"] * 3,
    }


def test_figures_of_a_run_whose_ranks_were_cut_are_those_of_its_last_size(tmp_path):
    """Steps of 100 tokens, of which the last three were made after the cut, the first of them up to its record."""
    steps = [(600, 1000.0), (600, 1000.0), (600, 1000.0), (600, 1000.0), (300, 900.0), (300, 500.0), (300, 400.0)]
    records = [
        metric(step, params=params, step_ms=ms, tokens_per_second=1e5 / ms, flops_per_second=3e8 / ms)
        for step, (params, ms) in enumerate(steps, 1)
    ]
    rows = table(figure_rows([read_run(write_run(tmp_path / "a", records=records))]))
    names = ("milliseconds a step", "tokens a second", "achieved FLOP/s")
    assert [rows[name] for name in names] == [["450.0"], ["225"], ["675 k"]]


def test_units_are_those_of_the_kinds(tmp_path):
    clicks = write_run(tmp_path / "b", "model: {kind: dlrm}\ntrain: {tokens: 60}\n", records=[metric(3)])
    rows = table(figure_rows(read_runs([finished(tmp_path / "a"), clicks])))
    assert rows["data read"] == ["50 tokens", "30 rows"]
    assert rows["progress"] == ["finished", "step 3, 50%"]
    assert rows["training FLOPs per token or row"] == ["3 k", "3 k"]


def test_time_is_that_of_the_steps_between_two_records(tmp_path):
    records = [metric(1, step_ms=500.0), metric(5, step_ms=250.0)]
    assert read_run(write_run(tmp_path / "a", records=records)).seconds() == [0.5, 1.5]


@pytest.mark.parametrize(("step_ms", "unit"), [(1e3, "seconds"), (1e5, "minutes"), (1e7, "hours")])
def test_the_axis_of_time_has_a_unit_that_suits(tmp_path, step_ms, unit):
    run = read_run(write_run(tmp_path / "a", records=[metric(1), metric(3, step_ms=step_ms)]))
    assert f"{unit} of training steps" in loss_charts([run])["time"]


def test_the_axis_holds_the_validation_losses(tmp_path):
    run = read_run(write_run(tmp_path / "a", records=[metric(1), metric(2), metric(3, val_loss=1.5)]))
    axes = Figure().subplots()
    draw_losses(axes, [run], "step", lambda run: [record["step"] for record in run.records])
    assert axes.get_ylim()[0] < 1.5  # the training losses are 9, 4.5 and 3


def test_only_keys_that_differ_are_shown(tmp_path):
    one = "run: {name: a, directory: x}\nmodel: {kind: decoder, layers: 2}\noptim: {lr: 0.1, betas: [0.9, 0.95]}\n"
    other = "run: {name: b, directory: y}\nmodel: {kind: dlrm}\noptim: {lr: 0.1, betas: [0.9, 0.99]}\n"
    runs = read_runs([write_run(tmp_path / "a", one), write_run(tmp_path / "b", other)])
    assert table(configuration_differences(runs)) == {
        "model.kind": ["decoder", "dlrm"],
        "model.layers": ["2", "–"],
        "optim.betas": ["[0.9, 0.95]", "[0.9, 0.99]"],
    }


def test_the_page_is_well_formed_and_refers_to_nothing_else(tmp_path):
    text, root = page_of(tmp_path, finished(tmp_path / "a", syncs=SYNCS), finished(tmp_path / "b"))
    assert not re.search(r"https?:|\bsrc=|@import|<script|<link", text)
    references = [value for element in root.iter() for name, value in element.attrib.items() if name == "href"]
    assert all(value.startswith(("#", "data:image/png;base64,")) for value in references)
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids)) > 100
    used = {*re.findall(r"url\(#([^)]+)\)", text), *(value[1:] for value in references if value.startswith("#"))}
    assert used
    assert used <= set(ids)


def test_drawings_take_the_colour_of_the_page(tmp_path):
    text, root = page_of(tmp_path, finished(tmp_path / "a", syncs=SYNCS, norms=NORMS))
    drawings = list(root.iter("svg"))
    assert len(drawings) == 5  # three scales of the loss, the ranks, and the updates
    assert "currentColor" in text
    assert not re.search(r"(fill|stroke): #(000000|ffffff)", text)
    assert text.count("data:image/png;base64,") == 4  # the heat maps and their scales
    assert [radio.attrib.get("checked") for radio in root.iter("input")] == ["checked", None, None]


def test_each_run_has_a_curve_of_its_own_colour(tmp_path):
    root = page_of(tmp_path, finished(tmp_path / "a"), finished(tmp_path / "b"))[1]
    swatches = [span.attrib["style"].rpartition(" ")[2] for span in root.iter("span")]
    assert len(set(swatches)) == 2
    for drawing in root.iter("svg"):
        strokes = re.findall(r"stroke: (#\w+)", ElementTree.tostring(drawing, encoding="unicode"))
        assert set(swatches) <= set(strokes)


def test_more_runs_than_colours_differ_in_the_style_of_their_lines(tmp_path):
    runs = [finished(tmp_path / "a")] * (len(COLOURS) + 2)
    swatches = [span.attrib["style"].split()[2:] for span in page_of(tmp_path, *runs)[1].iter("span")][: len(runs)]
    axes = Figure().subplots()
    draw_losses(axes, read_runs(runs), "step", lambda run: [record["step"] for record in run.records])
    dashes = {"solid": "-", "dashed": "--"}
    curves = [[line.get_linestyle(), line.get_color()] for line in axes.lines]
    assert curves[::2] == curves[1::2] == [[dashes[style], colour] for style, colour in swatches]
    assert len({tuple(swatch) for swatch in swatches}) == len(runs)


def test_text_of_files_is_shown_and_never_read_as_markup(tmp_path):
    nasty = "</pre><script>alert(1)</script>"
    config = f"wandb:\n  project: '{nasty}'\n"
    runs = finished(tmp_path / "a", config=config, syncs=SYNCS), finished(tmp_path / "x<b>&", config="wandb: 1\n")
    root = page_of(tmp_path, *runs)[1]
    assert not list(root.iter("script"))
    assert root.find(".//pre").text.strip() == config.strip()
    assert any(nasty in (cell.text or "") for cell in root.iter("td"))
    assert "x<b>&" in root.find(".//title").text
    assert "a<b>" in "".join(element.text or "" for element in root.iter("text"))


def test_one_run_has_no_differences_and_two_alike_say_so(tmp_path):
    assert "Keys whose values differ" not in page_of(tmp_path, finished(tmp_path / "a"))[0]
    text, root = page_of(tmp_path, tmp_path / "a", finished(tmp_path / "other" / "a"))
    assert "All keys are equal." in text
    assert [th.find("span").tail for th in root.iter("th") if th.find("span") is not None] == [
        str(tmp_path / "a"),
        str(tmp_path / "other" / "a"),
    ]


@pytest.mark.parametrize(("other", "is_said"), [("corpora/mine", True), ("corpora/yours", False)])
def test_losses_of_different_data_are_not_compared_silently(tmp_path, other, is_said):
    runs = [finished(tmp_path / name) for name in ("a", "b")]
    for run, corpus in zip(runs, ("corpora/yours", other), strict=True):
        (run / "config.yaml").write_text(f"data: {{corpus: {corpus}}}\n")
    assert ("The runs read different data." in page_of(tmp_path, *runs)[0]) == is_said


@pytest.mark.parametrize(
    ("mine", "yours", "is_said"),
    [
        ("{teacher: {run: null, share: 0.5}}", "{}", False),  # an earlier version knew no teachers
        ("{teacher: {run: runs/a, share: 0.5}}", "{}", True),
        ("{teacher: {run: runs/a, share: 0.5}}", "{teacher: {run: runs/a, share: 0.9}}", True),
        ("{teacher: {run: runs/a, step: null}}", "{teacher: {run: runs/a}}", False),
        ("{teacher: {run: runs/a, step: 4}}", "{teacher: {run: runs/a, step: 5}}", True),
    ],
)
def test_training_losses_with_other_teachers_are_not_compared_silently(tmp_path, mine, yours, is_said):
    runs = [finished(tmp_path / name) for name in ("a", "b")]
    for run, train in zip(runs, (mine, yours), strict=True):
        (run / "config.yaml").write_text(f"train: {train}\n")
    assert ("The runs have different teachers" in page_of(tmp_path, *runs)[0]) == is_said


def test_a_run_without_a_step_has_no_curve(tmp_path):
    assert not list(page_of(tmp_path, write_run(tmp_path / "a"))[1].iter("svg"))


def mistake(capsys, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["compare.py", *map(str, arguments)])
    assert main() == 2
    return capsys.readouterr().err


def test_mistakes_end_in_one_sentence(tmp_path, capsys, monkeypatch):
    run = finished(tmp_path / "a")
    assert "no config.yaml; name the directory of a run" in mistake(capsys, monkeypatch, tmp_path / "none")
    assert "cannot be written" in mistake(capsys, monkeypatch, run, "--output", tmp_path / "no" / "page.html")
    (run / "config.yaml").write_text("a: [")
    assert "cannot be read (it is not valid YAML" in mistake(capsys, monkeypatch, run)


@pytest.mark.parametrize(
    ("log", "changed"),
    [
        ("ranks", {"syncs": [START, {"step": 2, "ranks": {"model.a<b>": []}}]}),
        ("norms", {"norms": [{"step": 2, "update_ratio": {"lm_head": "large"}}]}),
        ("metrics", {"records": [metric(1, loss=1e308), metric(2, loss=-1e308)]}),
        ("metrics", {"records": [metric(1, loss=1.7e308)]}),
    ],
)
def test_changed_logs_are_named(tmp_path, log, changed):
    run = write_run(tmp_path / "a", **changed)
    with pytest.raises(RunDirectoryError, match=f"the {log} of a cannot be drawn"):
        write_comparison([run], tmp_path / "page.html")


@pytest.mark.parametrize("output", [".", "", "..", "/"])
def test_a_folder_is_no_page(tmp_path, capsys, monkeypatch, output):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "is a folder; name a file for the page" in mistake(capsys, monkeypatch, "none", "--output", output)
    assert list(tmp_path.rglob("*")) == [tmp_path / "here"]


def test_a_name_that_is_not_utf_8_has_a_page(tmp_path, capsys, monkeypatch):
    run, output = finished(tmp_path / os.fsdecode(b"caf\xe9")), tmp_path / os.fsdecode(b"p\xe9.html")
    monkeypatch.setattr("sys.argv", ["compare.py", str(run), "--output", str(output)])
    assert main() == 0
    assert "p?.html compares 1 run" in capsys.readouterr().out
    assert "caf?" in output.read_text()


def test_the_later_record_of_a_step_counts(tmp_path):
    records = [metric(1), metric(2), metric(3), metric(2, loss=7.0), metric(3, loss=6.0, val_loss=5.0)]
    run = read_run(write_run(tmp_path / "a", records=records))
    assert run.records == [metric(1), *records[3:]]
    assert loss_charts([run])


def test_the_command_says_where_the_page_is(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["compare.py", str(finished(tmp_path / "a")), "--output", str(tmp_path / "p.html")])
    assert main() == 0
    assert "p.html compares 1 run" in capsys.readouterr().out
    assert (tmp_path / "p.html").read_text().startswith("<!DOCTYPE html>")
