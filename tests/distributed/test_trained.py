"""What is done with a trained model: judged by launch/evaluate.py's function, or the start of another run."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from forked import run_processes
from support import ROOT, WORKLOADS, environment, make_clicks, make_pairs, saved_tensors, tiny_run, with_manifest

pytestmark = pytest.mark.distributed
KINDS = ("decoder", *WORKLOADS)


@pytest.fixture(scope="module")
def runs(tiny_corpus, tmp_path_factory):
    """A short run of each kind on two processes; `corpora` is what each reads."""
    directory = tmp_path_factory.mktemp("trained")
    pairs, clicks = make_pairs(directory / "pairs"), make_clicks(directory / "clicks")
    corpora = {"decoder": tiny_corpus, "classifier": pairs, "masked_lm": pairs, "dlrm": clicks}

    def run(kind: str, name: str, *more: str) -> list[str]:
        if kind == "decoder":
            return tiny_run(tiny_corpus, directory, name, "train.steps=4", *more)
        place = [f"data.corpus={corpora[kind]}", f"run.directory={directory}", f"run.name={name}"]
        return [*place, *WORKLOADS[kind], "train.steps=4", *more]

    saving = ["checkpoint.every=2", "checkpoint.keep=9", "optim.lr=0.01"]
    run_processes(2, "train_runs", runs=[run(kind, kind, *saving) for kind in KINDS])
    run.directory, run.corpora = directory, corpora
    return run


def edited(directory, key: str) -> str:
    """A copy of a run in whose config.yaml the model has twice as many of `key`."""
    shutil.copytree(directory / "classifier", directory / key)
    path = directory / key / "config.yaml"
    path.write_text(path.read_text().replace(f"{key}: 2", f"{key}: 4"))
    return str(path.parent)


@pytest.fixture(scope="module")
def evaluated(runs, tmp_path_factory):
    """(figures on one process, figures on two) of each kind, and what wrong calls are told."""
    calls = [{"run": str(runs.directory / kind)} for kind in KINDS]
    folder = tmp_path_factory.mktemp("others")
    again, other = (
        with_manifest(runs.corpora["decoder"], folder / name, **changes)
        for name, changes in (("again", {"source": "elsewhere"}), ("other", {"tokenizer": b"another"}))
    )
    extra = [
        {"run": str(runs.directory / "dlrm"), "step": 2},
        {"run": str(runs.directory / "classifier"), "split": "train", "max_tokens": 64},
        {"run": str(runs.directory / "classifier"), "split": "test"},
        {"run": str(runs.directory / "classifier"), "corpus": str(runs.corpora["dlrm"])},
        {"run": str(runs.directory / "classifier"), "step": 3},
        {"run": str(runs.directory / "nothing")},
        *({"run": edited(runs.directory, key)} for key in ("heads", "layers")),
        {"run": str(runs.directory / "decoder"), "corpus": str(other)},
        {"run": str(runs.directory / "decoder"), "corpus": str(again)},
    ]
    (one,) = run_processes(1, "evaluate_runs", calls=calls + extra)
    two = run_processes(2, "evaluate_runs", calls=calls)[0]
    return dict(zip(KINDS, zip(one, two, strict=False), strict=False)), one[len(KINDS) :]


@pytest.mark.parametrize("kind", KINDS)
def test_figures_are_those_of_the_run_on_any_number_of_processes(runs, evaluated, kind):
    one, two = evaluated[0][kind]
    summary = json.loads((runs.directory / kind / "summary.json").read_text())
    figures = {key.removeprefix("val_"): value for key, value in summary.items() if key.startswith("val_")}
    assert figures.keys() > {"loss"}
    for found in (one, two):
        assert {name: found[name] for name in figures} == pytest.approx(figures, rel=1e-5)
        assert found["step"] == 4


def test_an_older_checkpoint_and_a_part_of_a_split(evaluated):
    (figures, _), (older, part, *_) = evaluated[0]["dlrm"], evaluated[1]
    assert older["step"] == 2
    assert older["loss"] != figures["loss"]
    assert (part["split"], part["targets"]) == ("train", 4)


def test_wrong_calls_are_told_what_to_do(evaluated):
    no_split, other_kind, no_step, no_run, *edited, other_tokenizer, _ = evaluated[1][2:]
    assert "has no split 'test'; it has train, valid" in no_split
    assert "holds clicks, and this model reads pairs" in other_kind
    assert "has no checkpoint of step 3" in no_step
    assert "has no config.yaml; name the directory of a run" in no_run
    assert "differs in its tokenizer from the data that" in other_tokenizer
    for key, told in zip(("heads", "layers"), edited, strict=True):
        assert f"model.{key} = 4 and " in told
        assert "was trained with 2; set it back" in told


def test_other_data_of_the_same_tokenizer_are_judged(evaluated):
    assert evaluated[1][-1]["loss"] == pytest.approx(evaluated[0]["decoder"][0]["loss"])


def test_the_command_prints_json(runs):
    command = [sys.executable, "launch/evaluate.py", "--run", str(runs.directory / "dlrm"), "--json"]
    # Not told of the device, DeepSpeed must not say what it found where JSON is expected.
    untold = {key: value for key, value in environment(PYTHONPATH=str(ROOT)).items() if key != "DS_ACCELERATOR"}
    done = subprocess.run(command, cwd=ROOT, env=untold, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert {"loss", "accuracy", "auc", "targets"} < json.loads(done.stdout).keys()


def test_a_run_starts_from_the_weights_of_another(runs, tmp_path):
    other = with_manifest(runs.corpora["decoder"], tmp_path / "other", tokenizer=b"another")
    start = f"run.start_from={runs.directory / 'masked_lm'}"
    still = ["optim.lr=1e-12", "optim.weight_decay=0", "train.steps=1"]
    told = run_processes(
        1,
        "train_or_say",
        runs=[
            runs("masked_lm", "second", start, *still, "data.seq_len=12", "tensor.rank=2"),
            runs("masked_lm", "wider", start, "model.d_model=32"),
            runs("masked_lm", "lost", f"run.start_from={runs.directory / 'nothing'}"),
            runs("decoder", "attends", f"run.start_from={runs.directory / 'decoder'}", "model.heads=4"),
            [*runs("decoder", "speaks", f"run.start_from={runs.directory / 'decoder'}"), f"data.corpus={other}"],
            runs("masked_lm", "never", start, "run.start_step=3"),
            runs("masked_lm", "earlier", start, "run.start_step=2", *still),
        ],
    )[0]
    assert told[0] == told[6] == 0
    assert "set model and data as in run.start_from" in told[1]
    assert "has no checkpoint; name one that a run has saved" in told[2]
    assert "model.heads is 4 here and 2 in" in told[3]
    assert "differs in its tokenizer from the data that" in told[4]
    assert "masked_lm has no checkpoint of step 3; name one that a run has saved" in told[5]
    for name, step in (("second", 4), ("earlier", 2)):
        before, after = saved_tensors(runs.directory, "masked_lm", step), saved_tensors(runs.directory, name, 1)
        weights = {key for key in before if key.startswith("weight/")}
        assert weights == {key for key in after if key.startswith("weight/")}
        assert all(torch.allclose(before[key], after[key], atol=1e-9) for key in weights)
