"""Files for TensorBoard, read back by TensorBoard's own reader."""

import numpy as np
import pytest
from matplotlib.image import imsave
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from comera_dist.config.reader import read_config
from comera_dist.errors import ConfigError
from comera_dist.report import tensorboard_log
from comera_dist.report.records import NormsMeasured, RanksSynced, RunEnded, RunFinished, RunStarted, StepLogged
from comera_dist.report.tensorboard_log import TensorboardLog, check_installed
from comera_dist.storage.run_directory import RunDirectory

ENABLED = read_config(None, ["train.steps=9", "tensorboard.enabled=true"])


def write(folder, first, last, scale=1.0, config=ENABLED):
    """A start of the run that goes on after step `first` and makes its last record at `last`."""
    log = TensorboardLog(config, RunDirectory(folder))
    log(RunStarted(config, None, {}, None, 1, first))
    for step in range(first + 1, last + 1):
        log(StepLogged({"step": step, "loss": scale / step, "stage": "early", "val_auc": None}, 1.0, 0.0))
        if step % 2 == 0:
            log(RanksSynced({"step": step, "size": 100 - step, "target": None, "ranks": {"a": [step]}}))
    return log


def scalars(folder):
    """(step, value) of each curve."""
    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return {name: [(event.step, event.value) for event in found.Scalars(name)] for name in found.Tags()["scalars"]}


def test_numbers_of_steps_and_ranks_are_curves(tmp_path):
    write(tmp_path, 0, 4)(RunEnded(in_haste=False))
    found = scalars(tmp_path)
    assert found.keys() == {"step", "loss", "ranks/step", "ranks/size"}
    assert found["loss"] == [(step, pytest.approx(1 / step)) for step in (1, 2, 3, 4)]
    assert found["ranks/size"] == [(2, 98), (4, 96)]


def test_norms_are_curves_of_each_layer(tmp_path):
    config = read_config(None, ["train.steps=9", "tensorboard.enabled=true", "log.norms_every=3"])
    log = write(tmp_path, 0, 0, config=config)
    log(
        NormsMeasured(
            {"step": 3, "tokens": 6, "weight": {"a.b": 2.0, "c": 1.0}, "update_ratio": {"a.b": None, "c": 0.5}}
        )
    )
    log(RunEnded(in_haste=False))
    found = scalars(tmp_path)
    assert found == {"norms/weight/a.b": [(3, 2.0)], "norms/weight/c": [(3, 1.0)], "norms/update_ratio/c": [(3, 0.5)]}


def test_heat_maps_are_images_during_the_run_and_all_plots_at_its_end(tmp_path):
    """A plot that could not be drawn is left out."""
    config = read_config(None, ["train.steps=9", "tensorboard.enabled=true", "ranks.adapt=true", "ranks.sync_every=2"])
    log, plots = write(tmp_path, 0, 0, config=config), tmp_path / "plots"
    plots.mkdir()
    for step in (2, 3, 4):
        log(RanksSynced({"step": step}))
        imsave(plots / "ranks.png", np.full((step, 8, 3), step / 9))
    imsave(plots / "loss.png", np.zeros((5, 5, 3)))
    log(RunFinished({"step": 9}, None))
    log(RunEnded(in_haste=False))
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    sizes = {name: [(e.step, e.height, e.width) for e in found.Images(name)] for name in found.Tags()["images"]}
    assert sizes == {"plots/ranks": [(4, 3, 8), (9, 4, 8)], "plots/loss": [(9, 5, 5)]}


def test_a_resumed_run_goes_on_without_doubled_steps(tmp_path):
    """Also where the earlier start was killed: what it wrote up to the checkpoint is kept."""
    write(tmp_path, 0, 6)
    write(tmp_path, 4, 8, scale=2.0)(RunEnded(in_haste=False))
    expected = [1, 1 / 2, 1 / 3, 1 / 4, 2 / 5, 2 / 6, 2 / 7, 2 / 8]
    found = scalars(tmp_path)
    assert found["loss"] == [(step, pytest.approx(loss)) for step, loss in enumerate(expected, start=1)]
    assert [step for step, _ in found["ranks/size"]] == [2, 4, 6, 8]


def test_a_run_that_starts_anew_keeps_nothing(tmp_path):
    write(tmp_path, 0, 6)(RunEnded(in_haste=True))
    write(tmp_path, 0, 2, scale=3.0)(RunEnded(in_haste=False))
    assert scalars(tmp_path)["loss"] == [(1, 3.0), (2, 1.5)]


def test_nothing_is_written_unless_it_is_asked_for(tmp_path):
    write(tmp_path, 0, 2, config=read_config(None, ["train.steps=9"]))(RunEnded(in_haste=False))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said_once_and_ends_nothing(tmp_path, capsys):
    (tmp_path / "tensorboard").write_text("a file")
    write(tmp_path, 0, 3)(RunEnded(in_haste=False))
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "TensorBoard is written no more" in said


def test_a_missing_package_is_a_mistake_of_the_configuration(monkeypatch):
    check_installed(ENABLED)
    monkeypatch.setattr(tensorboard_log, "find_spec", lambda name: None)
    check_installed(read_config(None, ["train.steps=9"]))
    with pytest.raises(ConfigError, match="needs the package tensorboard, which is not installed; run `pip install"):
        check_installed(ENABLED)
