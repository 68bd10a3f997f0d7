"""A tiny trained decoder, and tasks on local files."""

import pytest
from forked import run_processes
from local_tasks import document, write_tasks
from support import tiny_run
from text_corpus import make_text_corpus

from comera_dist.generate.writer import writer_of
from comera_dist.run.trained import load_trained

SEQ_LEN = 32


@pytest.fixture(scope="session")
def judged_run(tmp_path_factory):
    """A decoder of tensor trains, trained far enough that its probabilities differ from token to token.

    It has read documents like those of the tasks, so it has a corpus of its own.
    """
    folder = tmp_path_factory.mktemp("judged")
    corpus = make_text_corpus(folder, map(document, range(80)), 320)
    more = [f"data.seq_len={SEQ_LEN}", "train.batch_tokens=256", "train.steps=40", "optim.lr=0.02"]
    overrides = tiny_run(corpus, folder, "tiny", *more, "schedule.warmup_steps=2")
    assert run_processes(1, "train_runs", runs=[overrides]) == [[0]]
    return folder / "tiny"


@pytest.fixture(scope="session")
def trained(judged_run):
    return load_trained(judged_run)


@pytest.fixture(scope="session")
def writer(judged_run):
    return writer_of(load_trained(judged_run), judged_run)


@pytest.fixture(scope="session")
def task_folder(tmp_path_factory):
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="session", autouse=True)
def data_sets_cache(tmp_path_factory):
    """`datasets` stores what it has read there, not in the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield
