"""What validation and launch/evaluate.py say where there is nothing to print."""

from types import SimpleNamespace

import pytest
import torch
from support import TINY, WORKLOADS, make_clicks, make_corpus

from comera_dist.checkpoints.read import Checkpoint
from comera_dist.config.reader import read_config
from comera_dist.data.columns import Column
from comera_dist.data.tasks import open_task
from comera_dist.errors import CheckpointError, DataError, TrainingError
from comera_dist.models.planning import plan_model
from comera_dist.report.tables import show_evaluation
from comera_dist.run import evaluate
from comera_dist.run.evaluate import evaluate_run
from comera_dist.run.trained import Trained
from data_prep.column_folder import ColumnFolder
from launch.evaluate import main


@pytest.fixture
def judged(monkeypatch, tmp_path):
    """Judges a run whose model is not needed, on the data in a folder."""

    def judge(overrides, corpus, **measured):
        config = read_config(None, [*overrides, f"data.corpus={corpus}"])
        task = open_task(config)
        record = {"cursor": {"fingerprint": task.fingerprint}}
        checkpoint = Checkpoint(tmp_path, {"step": 1, "run": record}, processes=None)
        known = Trained(config, plan_model(config, task.facts), checkpoint, torch.nn.Identity())
        monkeypatch.setattr(evaluate, "load_trained", lambda *arguments: known)
        monkeypatch.setattr(evaluate, "measure", lambda *arguments: measured)

        def on(folder):
            processes = SimpleNamespace(count=3, index=0, gather=lambda thing: [thing])
            return evaluate_run(tmp_path, processes, None, folder, "valid", None)

        return on

    return judge


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_no_result(tiny_corpus, judged, loss):
    judge = judged(TINY, tiny_corpus, loss=loss, targets=4.0)
    with pytest.raises(TrainingError, match=rf"the loss on split 'valid' is {loss}, expected a finite number"):
        judge(None)


def test_any_number_of_processes_judges(tiny_corpus, judged):
    """Eight sequences of a training batch do not divide by three."""
    assert judged(TINY, tiny_corpus, loss=8.0, targets=4.0)(None)["loss"] == 2.0


def test_damaged_data_give_no_figures(tmp_path, judged):
    corpus = make_corpus(tmp_path / "data")
    judge = judged(TINY, corpus, loss=8.0, targets=4.0)
    shard = corpus / "valid/00000.bin"
    shard.write_bytes(shard.read_bytes()[::-1])
    with pytest.raises(DataError, match="its sha256 is not the manifest's"):
        judge(None)


def test_the_places_of_run_and_data_are_printed_whole(capsys):
    run, corpus = f"runs/{'long-' * 40}[red]", f"corpora/{'deep/' * 40}[/red]"
    show_evaluation({"run": run, "step": 3, "corpus": corpus, "split": "valid", "targets": 5, "loss": 1.5})
    assert capsys.readouterr().out.splitlines()[0] == f"{run} at step 3 on valid of {corpus}"


@pytest.mark.parametrize("tokens", ["0", "-1"])
def test_reading_nothing_is_refused(monkeypatch, capsys, tokens):
    monkeypatch.setattr("sys.argv", ["evaluate.py", "--run", "runs/x", "--max-tokens", tokens])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert f"argument --max-tokens: {tokens} is not possible; give 1 or more" in capsys.readouterr().err


def test_clicks_of_other_columns_are_refused(tmp_path, judged):
    """A fourth category makes a table that the model does not have."""
    judge = judged(WORKLOADS["dlrm"], make_clicks(tmp_path / "clicks", rows=20))
    columns = {"dense": Column("<f4", 2), "categories": Column("<i4", 4), "labels": Column("|i1")}
    folder = ColumnFolder(tmp_path / "wider", "clicks", columns, ["valid"], {})
    with folder.writing():
        folder.publish({"dense": ["x", "y"], "categories": ["a", "b", "c", "d"], "table_rows": [60, 7, 48, 9]})
    with pytest.raises(CheckpointError, match=r"wider makes tables.3 9 → 8, and the model has missing; prepare"):
        judge(tmp_path / "wider")
