"""A corpus whose content was changed is refused by all processes, at a new start and at a resume."""

import os

import pytest
from forked import run_processes
from support import make_corpus, metrics, tiny_run

pytestmark = pytest.mark.distributed


def test_other_tokens_of_the_same_sizes_are_refused_by_all(tmp_path):
    corpus = make_corpus(tmp_path / "corpus")
    run = tiny_run(corpus, tmp_path, "run", "train.steps=4", "schedule.warmup_steps=1")
    assert run_processes(2, "train_runs", runs=[run]) == [[0], [0]]
    shard = corpus / "train/00000.bin"
    facts, tokens = shard.stat(), shard.read_bytes()
    shard.write_bytes(tokens[2:] + tokens[:2])
    os.utime(shard, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    longer, anew = [*run, "train.steps=6"], [*run, "run.name=anew"]
    told = run_processes(2, "train_or_say", runs=[longer, anew])
    assert told[0] == told[1]
    assert all(f"{shard} is damaged" in sentence for sentence in told[0])
    assert len(metrics(tmp_path, "run")) == 4
    assert not (tmp_path / "anew/metrics.jsonl").exists()
