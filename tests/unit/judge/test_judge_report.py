"""Calibration and the loss by position against loops over single predictions, and the folder of a report."""

import json
from dataclasses import replace

import pytest
import torch
from forked import run_processes, run_program
from support import ROOT, WORKLOADS, make_clicks, make_pairs

from comera_dist.data.tasks import open_task
from comera_dist.errors import ConfigError
from comera_dist.judge import curves
from comera_dist.judge.calibration import BINS, calibration_bins, calibration_error, calibration_sums
from comera_dist.judge.curves import measure_curves
from comera_dist.judge.report import judge_with_report
from comera_dist.ops.targets import IGNORED_TARGET
from comera_dist.run.evaluate import open_split
from comera_dist.runtime.processes import alone


def slow_calibration(predictions):
    """The bins and the error of (confidence, is right) pairs, by the definition."""
    bins = []
    for index in range(BINS):
        members = [one for one in predictions if index / BINS < one[0] <= (index + 1) / BINS]
        if members:
            confidence, accuracy = (sum(column) / len(members) for column in zip(*members, strict=True))
            bins.append((index / BINS, len(members), confidence, accuracy))
    return bins, sum(count * abs(accuracy - mean) for _, count, mean, accuracy in bins) / len(predictions)


def as_rows(bins):
    return [(one["above"], one["targets"], one["confidence"], one["accuracy"]) for one in bins]


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 9.0])
def test_calibration_is_that_of_the_definition(sharpness):
    generator = torch.Generator().manual_seed(0)
    probabilities = (sharpness * torch.randn(200, 5, generator=generator)).double().softmax(-1)
    targets = torch.randint(5, (200,), generator=generator)
    targets[::7] = IGNORED_TARGET
    sums = calibration_sums(probabilities, targets).values()
    rows = [(p, t) for p, t in zip(probabilities.tolist(), targets.tolist(), strict=True) if t != IGNORED_TARGET]
    bins, error = slow_calibration([(max(p), p.index(max(p)) == t) for p, t in rows])
    assert as_rows(calibration_bins(*sums)) == [pytest.approx(one) for one in bins]
    assert calibration_error(*sums) == pytest.approx(error)
    assert error > 0.01


def test_a_certain_and_right_model_has_no_error():
    sums = list(calibration_sums(torch.eye(4), torch.arange(4)).values())
    assert calibration_error(*sums) == 0
    assert [one["up_to"] for one in calibration_bins(*sums)] == [1]


@pytest.fixture(scope="module")
def report(judged_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "deep/folder"
    return judge_with_report(judged_run, alone(), None, None, "valid", None, folder), folder


def test_curves_are_those_of_a_loop_over_the_windows(trained, report):
    result, _ = report
    valid = open_task(trained.config).held_out("valid")
    nats, predictions = {}, []
    for row in range(len(valid)):
        inputs, targets = valid.batch(*[torch.tensor([row]).numpy()] * 2)
        with torch.no_grad():
            probability = trained.model(inputs)[0].double().softmax(-1)
        for place, target in enumerate(targets[0].tolist()):
            if target != IGNORED_TARGET:
                nats.setdefault(place + 1, []).append(-float(probability[place, target].log()))
                predictions.append((float(probability[place].max()), int(probability[place].argmax()) == target))
    found = {one["position"]: (one["targets"], one["loss"]) for one in result["loss_by_position"]}
    assert found == {place: (len(of), pytest.approx(sum(of) / len(of), rel=1e-5)) for place, of in nats.items()}
    bins, error = slow_calibration(predictions)
    assert as_rows(result["calibration"]) == [pytest.approx(one, rel=1e-5) for one in bins]
    assert result["calibration_error"] == pytest.approx(error, rel=1e-4)
    assert len(bins) > 3


@pytest.mark.parametrize("logits", [1, 3 * 32 * 320])
def test_how_many_logits_live_at_once_makes_no_difference(trained, report, monkeypatch, logits):
    monkeypatch.setattr(curves, "LOGITS", logits)
    found = measure_curves(trained, alone(), open_split(trained, alone(), None, "valid", None))
    assert found["calibration_error"] == pytest.approx(report[0]["calibration_error"], rel=1e-5)
    losses = [[one["loss"] for one in result["loss_by_position"]] for result in (found, report[0])]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_the_mean_over_positions_is_the_loss(report):
    result, _ = report
    assert sum(one["targets"] for one in result["loss_by_position"]) == result["targets"]
    nats = sum(one["targets"] * one["loss"] for one in result["loss_by_position"])
    assert nats / result["targets"] == pytest.approx(result["loss"], rel=1e-5)


def test_a_report_is_a_file_of_figures_and_plots(report):
    result, folder = report
    assert json.loads((folder / "evaluation.json").read_text()) == result
    for name in ("calibration", "loss_by_position"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_processes_share_the_rows(judged_run, report, tmp_path):
    one, other = run_processes(2, "judge_report", run=str(judged_run), folder=str(tmp_path / "out"))
    assert one == other
    assert one["calibration_error"] == pytest.approx(report[0]["calibration_error"], rel=1e-4)
    losses = [[part["loss"] for part in result["loss_by_position"]] for result in (one, report[0])]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_command_prints_tables(judged_run, tmp_path):
    words = ["launch/evaluate.py", "--run", str(judged_run), "--report", str(tmp_path / "out")]
    done = run_program(words, ROOT)
    assert done.status == 0, done.err
    for cell in ("calibration error", "17 to 32", "accuracy"):
        assert cell in done.out


@pytest.fixture(scope="module")
def classifiers(tmp_path_factory):
    """Runs of one step of the other kinds of model."""
    folder = tmp_path_factory.mktemp("classifiers")
    pairs, clicks = make_pairs(folder / "pairs"), make_clicks(folder / "clicks")
    corpora = {"classifier": pairs, "masked_lm": pairs, "dlrm": clicks}
    place = {kind: [f"data.corpus={corpora[kind]}", f"run.directory={folder}", f"run.name={kind}"] for kind in corpora}
    runs = [[*place[kind], *WORKLOADS[kind], "train.steps=1"] for kind in corpora]
    assert run_processes(1, "train_runs", runs=runs) == [[0, 0, 0]]
    return folder


@pytest.mark.parametrize("kind", ["classifier", "dlrm"])
def test_classes_are_calibrated_too(classifiers, kind, tmp_path):
    result = judge_with_report(classifiers / kind, alone(), None, None, "valid", None, tmp_path / "out")
    assert sum(one["targets"] for one in result["calibration"]) == result["targets"]
    right = sum(one["targets"] * one["accuracy"] for one in result["calibration"])
    assert right / result["targets"] == pytest.approx(result["accuracy"])
    assert "loss_by_position" not in result
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"evaluation.json", "calibration.png"}


def test_mistakes_are_sentences(classifiers, judged_run, tmp_path):
    with pytest.raises(ConfigError, match="predicts neither the next token nor a class, so it has no report; leave"):
        judge_with_report(classifiers / "masked_lm", alone(), None, None, "valid", None, tmp_path / "out")
    assert not (tmp_path / "out").exists(), "nothing was measured yet"
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--report .*file/out cannot be written \(.*\); name another folder"):
        judge_with_report(judged_run, alone(), None, None, "valid", None, tmp_path / "file/out")


def test_documents_that_are_kept_apart_stay_apart(trained):
    """The starts of documents reach the model."""
    data = trained.config.data.model_copy(update={"documents": "separate"})
    apart = replace(trained, config=trained.config.model_copy(update={"data": data}))
    found = [measure_curves(one, alone(), open_split(one, alone(), None, "valid", None)) for one in (trained, apart)]
    assert found[0]["loss_by_position"] != found[1]["loss_by_position"]
