"""A run that learns from the model of another run."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from forked import run_processes
from support import cut_back, losses, metrics, saved_tensors, tiny_run, with_manifest

from comera_dist.checkpoints.read import find_checkpoint
from comera_dist.config.reader import read_config
from comera_dist.data.tasks import open_task
from comera_dist.errors import CheckpointError, ComeraError, ConfigError, DataError
from comera_dist.run.run_model import model_source
from comera_dist.run.teacher import open_teacher, teach
from comera_dist.run.train import Parts
from comera_dist.runtime.processes import alone

pytestmark = pytest.mark.distributed
TEACHER = ["model.format=dense", "model.d_model=32", "train.zero_stage=0", "checkpoint.every=1", "checkpoint.keep=9"]


def student(corpus, directory, name, *overrides):
    taught = f"train.teacher.run={directory}/teacher"
    return tiny_run(corpus, directory, name, taught, "checkpoint.every=3", "checkpoint.keep=9", *overrides)


@pytest.fixture(scope="module")
def trained(tiny_corpus, tmp_path_factory):
    """A teacher of four steps, students of it, and then four steps more of the teacher."""
    directory = tmp_path_factory.mktemp("taught")
    teacher = [*tiny_run(tiny_corpus, directory, "teacher", *TEACHER), "schedule.kind=constant"]
    ranks = ["ranks.adapt=true", "ranks.sync_every=2", "ranks.target_compression=3", "train.zero_stage=0"]
    runs = [
        [*teacher, "train.steps=4"],
        tiny_run(tiny_corpus, directory, "untaught", "train.zero_stage=0"),
        student(tiny_corpus, directory, "one", "train.zero_stage=0"),
        student(tiny_corpus, directory, "static", "train.zero_stage=0", "train.cuda_graphs=true"),
        student(tiny_corpus, directory, "cut", *ranks),
    ]
    assert run_processes(1, "train_runs", runs=runs) == [[0] * len(runs)]
    runs = [student(tiny_corpus, directory, f"two_{stage}", f"train.zero_stage={stage}") for stage in (1, 3)]
    assert run_processes(2, "train_runs", runs=runs) == [[0, 0]] * 2
    assert run_processes(1, "train_runs", runs=[[*teacher, "train.steps=8"]]) == [[0]]
    return directory


@pytest.mark.parametrize("name", ["two_1", "two_3", "static"])
def test_every_split_learns_alike(trained, name):
    assert losses(trained, name) == pytest.approx(losses(trained, "one"), rel=1e-5)
    assert losses(trained, "one") != pytest.approx(losses(trained, "untaught"), rel=1e-3)


@pytest.mark.parametrize("name", ["one", "two_3"])
def test_a_resume_is_bit_for_bit_also_if_the_teacher_was_trained_on(trained, tiny_corpus, name):
    assert (trained / "teacher/checkpoints/step_0000008").exists()
    again = cut_back(trained, name, f"{name}_again", 3)
    stage = f"train.zero_stage={0 if name == 'one' else 3}"
    processes = 1 if name == "one" else 2
    run = student(tiny_corpus, trained, again, stage)
    assert run_processes(processes, "train_runs", runs=[run]) == [[0]] * processes
    expected, found = (saved_tensors(trained, one, 8) for one in (name, again))
    assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_a_model_with_fewer_ranks_goes_on_learning(trained, tiny_corpus):
    sizes = [record["params"] for record in metrics(trained, "cut")]
    assert sizes[-1] < sizes[0]
    config = read_config(None, student(tiny_corpus, trained, "cut"))
    source = model_source(config, Parts(), alone())
    source.teacher, facts = opened(config), open_task(config)
    model, batch = source.build(source.plan(facts), torch.Generator().manual_seed(1)), torch.zeros(1, 16).long()
    assert not torch.isclose(model.train()(batch, batch), model.eval()(batch, batch))


def test_the_work_of_a_step_has_the_teachers_forward_pass(trained, tiny_corpus):
    """FLOPs of the student alone, and a third of the teacher's own training step."""
    of_teacher, alone_, taught = (
        metrics(trained, name)[-1]["flops_per_token"] for name in ("teacher", "untaught", "one")
    )
    assert taught == pytest.approx(alone_ + of_teacher / 3)
    assert (
        json.loads((trained / "one/summary.json").read_text())["params"] == metrics(trained, "untaught")[-1]["params"]
    )


def opened(config, own=None):
    return open_teacher(config, open_task(config), own, alone())


@pytest.mark.parametrize(
    ("overrides", "error", "words"),
    [
        (["train.teacher.run={folder}/nobody"], CheckpointError, "has no config.yaml"),
        (["train.teacher.step=99"], CheckpointError, "teacher has no checkpoint of step 99; train it first, or name"),
        (["data.corpus={folder}/other"], DataError, "differs in its tokenizer"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused(trained, tiny_corpus, overrides, error, words):
    with_manifest(tiny_corpus, trained / "other", tokenizer=b"another")
    changes = [override.format(folder=trained) for override in overrides]
    with pytest.raises(error, match=words):
        opened(read_config(None, student(tiny_corpus, trained, "refused", *changes)))
    shutil.rmtree(trained / "other")


def test_a_resume_whose_teacher_has_deleted_the_checkpoint_says_so(trained, tiny_corpus):
    config = read_config(None, student(tiny_corpus, trained, "one"))
    own = SimpleNamespace(run={"teacher": {"run": f"{trained}/teacher", "step": 99}})
    with pytest.raises(CheckpointError, match="teacher no longer has the checkpoint of step 99 that has taught"):
        opened(config, own)


def test_a_teacher_is_known_by_its_weights_and_not_by_its_name(trained, tiny_corpus):
    own = find_checkpoint(trained / "one/checkpoints", alone(), step=3)
    elsewhere = f"train.teacher.run={trained}/one/../teacher"
    config = read_config(None, student(tiny_corpus, trained, "one", elsewhere))
    assert opened(config, own).checkpoint.manifest["step"] == 4, "8 is the newest one"
    trained_anew = SimpleNamespace(run={"teacher": own.run["teacher"] | {"sha256": "of other weights"}})
    with pytest.raises(CheckpointError, match="no longer has the checkpoint of step 4 that has taught this run"):
        opened(read_config(None, student(tiny_corpus, trained, "one")), trained_anew)


def test_a_step_names_the_weights_that_teach(trained, tiny_corpus):
    own = find_checkpoint(trained / "one/checkpoints", alone(), step=3)
    chosen = [
        opened(read_config(None, student(tiny_corpus, trained, "one", *step)), checkpoint).checkpoint.manifest["step"]
        for step in ([], ["train.teacher.step=4"], ["train.teacher.step=6"])
        for checkpoint in (None, own)
    ]
    assert chosen == [8, 4, 4, 4, 6, 6], "the newest one, that of the resumed run, and those that are named"


def test_a_teacher_that_predicts_other_things_is_refused(trained, tiny_corpus):
    config = read_config(None, student(tiny_corpus, trained, "refused"))
    with pytest.raises(ConfigError, match="teacher is a Decoder, expected a Linear; name another run"):
        teach(torch.nn.Linear(1, 1), opened(config), config)


def test_a_model_that_was_handed_in_has_no_teacher(trained, tiny_corpus):
    config = read_config(None, student(tiny_corpus, trained, "refused"))
    with pytest.raises(ConfigError, match="the model was handed in, but only the configured model learns"):
        model_source(config, Parts(model=torch.nn.Linear(1, 1)), alone())


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.kind=dlrm", "train.teacher.run=runs/a"], "model.kind = dlrm cannot learn from a teacher"),
        (["train.teacher.share=0.9"], "train.teacher.share = 0.9 has no effect without train.teacher.run"),
        (["train.teacher.step=9"], "train.teacher.step = 9 has no effect without train.teacher.run"),
        (["run.start_step=9"], "run.start_step = 9 has no effect without run.start_from; set that too, or remove it"),
        (["train.teacher.run=runs/a", "train.teacher.share=0"], "train.teacher.share"),
    ],
)
def test_a_configuration_that_cannot_have_a_teacher_is_refused(overrides, words):
    with pytest.raises(ComeraError, match=words):
        read_config(None, ["train.steps=1", *overrides])
