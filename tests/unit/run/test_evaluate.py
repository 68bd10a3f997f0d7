"""Errors of an evaluation where there are no figures to print, and the figures of a model that is known."""

import re

import pytest
import torch
from support import ROOT, TINY, WORKLOADS, make_clicks, make_corpus
from torch import nn

from comera_dist.checkpoints.read import Checkpoint
from comera_dist.commands.evaluate import main
from comera_dist.config.reader import read_config
from comera_dist.data.columns import Column
from comera_dist.data.tasks import open_task
from comera_dist.errors import CheckpointError, DataError, TrainingError
from comera_dist.models.family import plan_model
from comera_dist.report.judgement_tables import show_evaluation
from comera_dist.run.evaluate import evaluate
from comera_dist.run.trained import Trained
from comera_dist.runtime.processes import Processes
from data_prep.files.column_folder import ColumnFolder


class Known(nn.Module):
    """A model of which every target costs `loss` nats."""

    def __init__(self, loss: float):
        super().__init__()
        self.loss, self.rows = loss, set()

    def measure(self, inputs_BS, targets_BS):
        self.rows.add(len(inputs_BS))
        return {"loss": self.loss * (targets_BS >= 0).sum()}


class FirstOfThree(Processes):
    """The first of three processes, of which the others measure nothing."""

    def __init__(self):
        super().__init__(0, 3, torch.device("cpu"))

    def sum(self, values):
        return [float(value) for value in values]

    def gather(self, thing):
        return [thing]


def trained_on(corpus, overrides, loss, folder):
    """A run on the data in `corpus` whose model is known."""
    config = read_config(None, [*overrides, f"data.corpus={corpus}"])
    task = open_task(config)
    record = {"run": {"cursor": {"fingerprint": task.fingerprint}}, "files": {"of two": {}, "processes": {}}}
    checkpoint = Checkpoint(folder, record, processes=None)
    return Trained(config, plan_model(config, task.facts), checkpoint, Known(loss))


def judge(trained, corpus):
    return evaluate(trained, FirstOfThree(), corpus, "valid", max_tokens=None)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_no_result(tiny_corpus, tmp_path, loss):
    trained = trained_on(tiny_corpus, TINY, loss, tmp_path)
    with pytest.raises(TrainingError, match=rf"the loss on split 'valid' is {loss}, expected a finite number"):
        judge(trained, tiny_corpus)


def test_any_number_of_processes_judges(tiny_corpus, tmp_path):
    """Eight sequences of a training batch do not divide by three."""
    assert judge(trained_on(tiny_corpus, TINY, 2.0, tmp_path), tiny_corpus)["loss"] == 2.0


@pytest.mark.parametrize(
    ("keys", "rows"),
    [
        (["train.batch_tokens=128"], 4),
        (["train.batch_tokens=128", "train.micro_batch=2"], 2),
        (["train.batch_tokens=128", "train.batch_ramp.start=4", "train.batch_ramp.steps=2"], 2),
    ],
)
def test_a_pass_takes_as_many_rows_as_in_the_training(tiny_corpus, tmp_path, keys, rows):
    """On two processes, with a batch of eight."""
    trained = trained_on(tiny_corpus, [*TINY, *keys, "data.seq_len=16"], 2.0, tmp_path)
    judge(trained, tiny_corpus)
    assert trained.model.rows == {rows}


def test_damaged_data_give_no_figures(tmp_path):
    corpus = make_corpus(tmp_path / "data")
    trained = trained_on(corpus, TINY, 2.0, tmp_path)
    shard = corpus / "valid/00000.bin"
    shard.write_bytes(shard.read_bytes()[::-1])
    with pytest.raises(DataError, match="its sha256 is not the manifest's"):
        judge(trained, corpus)


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


def test_clicks_of_other_columns_are_refused(tmp_path):
    """A fourth category makes a table that the model does not have."""
    trained = trained_on(make_clicks(tmp_path / "clicks", rows=20), WORKLOADS["dlrm"], 1.0, tmp_path)
    columns = {"dense": Column("<f4", 2), "categories": Column("<i4", 4), "labels": Column("|i1")}
    folder = ColumnFolder(tmp_path / "wider", "clicks", columns, ["valid"], {})
    with folder.writing():
        folder.publish({"dense": ["x", "y"], "categories": ["a", "b", "c", "d"], "table_rows": [60, 7, 48, 9]})
    with pytest.raises(CheckpointError, match=r"wider makes tables.3 9 → 8, and the model has missing; prepare"):
        judge(trained, tmp_path / "wider")


def test_torchrun_takes_the_command_of_the_guide():
    """Without its two dashes torchrun reads --run as an abbreviation of an option of its own."""
    from torch.distributed.run import get_args_parser

    guide = (ROOT / "docs/guide/trained.md").read_text()
    launcher, *options = re.search("`(torchrun .*evaluate.py --run .*?)`", guide)[1].split()
    found = get_args_parser().parse_args(options)
    assert launcher == "torchrun"
    assert found.nproc_per_node == "2"
    assert [found.training_script, *found.training_script_args] == options[options.index("--") + 1 :]
    with pytest.raises(SystemExit):
        get_args_parser().parse_args([option for option in options if option != "--"])
