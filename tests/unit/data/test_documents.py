"""Starts of documents in windows of text, against a loop over the definition."""

import numpy as np
import pytest
import torch
from support import TINY, WORKLOADS

from comera_dist.config.reader import read_config
from comera_dist.data.batches import FILLER
from comera_dist.data.documents import PackedBatch, document_starts
from comera_dist.data.shards import Corpus
from comera_dist.data.tasks import open_task
from comera_dist.data.windows import TrainWindows, ValidationWindows
from comera_dist.errors import ConfigError
from comera_dist.ops.targets import IGNORED_TARGET

EOS = 0  # of the generated corpus
SEPARATE = "data.documents=separate"


def slow_starts(inputs):
    found, start = [], 0
    for place, token in enumerate(inputs):
        start = place if token == EOS else start
        found.append(start)
    return found


@pytest.mark.parametrize(
    ("inputs", "starts"),
    [
        ([5, 6, EOS, 7, 8, EOS, 9], [0, 0, 2, 2, 2, 5, 5]),
        ([EOS, 5, EOS, EOS, 6], [0, 0, 2, 3, 3]),
        ([5, 6, 7], [0, 0, 0]),
        ([5, 6, EOS], [0, 0, 2]),
    ],
)
def test_an_eos_among_the_inputs_begins_a_document(inputs, starts):
    assert document_starts(torch.tensor([inputs]), EOS).tolist() == [starts] == [slow_starts(inputs)]


def test_starts_are_those_of_the_definition():
    inputs_BS = torch.randint(0, 6, (40, 33), generator=torch.Generator().manual_seed(0))
    assert document_starts(inputs_BS, EOS).tolist() == [slow_starts(row) for row in inputs_BS.tolist()]


@pytest.mark.parametrize("split", ["train", "valid"])
def test_windows_keep_their_tokens_and_all_of_their_targets(tiny_corpus, split):
    task = open_task(read_config(None, [*TINY, f"data.corpus={tiny_corpus}", SEPARATE]))
    examples = task.train() if split == "train" else task.held_out("valid")
    windows = (TrainWindows if split == "train" else ValidationWindows)(Corpus(tiny_corpus).split(split), 16)
    assert len(examples) == len(windows)
    row_B = np.array([0, len(windows) - 1, 3])
    batch, plain = examples.batch(row_B, row_B), windows.batch(row_B, row_B)
    assert isinstance(batch, PackedBatch)
    assert torch.equal(batch.inputs_BS, plain.inputs_BS)
    assert torch.equal(batch.targets_BS, plain.targets_BS)
    assert batch.starts_BS.tolist() == [slow_starts(row) for row in batch.inputs_BS.tolist()]
    assert (batch.starts_BS > 0).any()


def test_a_row_that_fills_up_a_batch_has_no_target(tiny_corpus):
    task = open_task(read_config(None, [*TINY, f"data.corpus={tiny_corpus}", SEPARATE]))
    batch = task.held_out("valid").batch(np.array([FILLER]), np.array([FILLER]))
    assert (batch.targets_BS == IGNORED_TARGET).all()


@pytest.mark.parametrize("kind", WORKLOADS)
def test_kinds_without_documents_refuse_the_key(kind):
    with pytest.raises(ConfigError, match=r"^data.documents = separate has no effect on model.kind = .*; remove it$"):
        read_config(None, [*WORKLOADS[kind], SEPARATE])
