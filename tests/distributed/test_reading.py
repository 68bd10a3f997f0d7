"""Data that one process cannot read end the run on all processes, with the same sentence and no hang."""

import pytest
from forked import run_processes
from support import tiny_run

pytestmark = pytest.mark.distributed


def test_an_error_of_one_reader_is_that_of_all(tiny_corpus, tmp_path):
    shared = ["train.batch_tokens=128", "eval.every=2"]
    runs = [tiny_run(tiny_corpus, tmp_path, "run", *shared, "train.zero_stage=3")]  # also forward passes are collective
    said = run_processes(2, "train_with_unreadable_rows", timeout=60, runs=runs, process=1)
    assert said[0] == said[1] == [["process 1 cannot read the rows of step 4", "process 1 cannot read on"]]
