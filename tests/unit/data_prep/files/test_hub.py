"""A streamed data set of the hub: its revision is kept, and reads that fail are tried again by the library."""

import asyncio
import json
from itertools import islice

import datasets
import fsspec
import pytest
from fake_hub import FakeBuilder
from fsspec.implementations.memory import MemoryFile

from comera_dist.errors import DataError
from data_prep.files.hub import HubStream


def test_the_revision_that_was_begun_is_read_to_its_end(monkeypatch):
    asked = []

    def load_builder(name, config, revision):
        asked.append(revision)
        rows = datasets.IterableDataset.from_generator(lambda: ({"text": str(number)} for number in range(9)))
        return FakeBuilder(rows, [], revision or "a" * 40)

    monkeypatch.setattr(datasets, "load_dataset_builder", load_builder)
    first = HubStream("some/data")
    assert [row["text"] for _, row in islice(first.table().rows, 4)] == list("0123")
    second = HubStream("some/data")
    second.resume(json.loads(json.dumps(first.place())))
    assert next(second.table().rows) == ("some/data: row 4", {"text": "4"})
    assert asked == [None, "a" * 40]


def remote(monkeypatch, failures):
    """A stream from another host, whose first reads fail, and the list of the failures that are left."""
    with fsspec.open("memory://remote/data.jsonl", "wb") as file:
        file.write(b'{"text": "one"}\n{"text": "two"}\n')
    left, read, load = list(range(failures)), MemoryFile.read, datasets.load_dataset_builder

    def unsteady(self, *arguments):
        if left:
            left.pop()
            raise asyncio.TimeoutError("the host is silent")
        return read(self, *arguments)

    monkeypatch.setattr(MemoryFile, "read", unsteady)
    files = {"train": "memory://remote/data.jsonl"}
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *_, revision: load("json", data_files=files))
    monkeypatch.setattr(datasets.config, "STREAMING_READ_RETRY_INTERVAL", 0)
    return HubStream("x").table().rows, left


def test_reads_that_fail_are_tried_again(monkeypatch):
    rows, left = remote(monkeypatch, failures=5)
    assert [row["text"] for _, row in rows] == ["one", "two"]
    assert not left


def test_a_host_that_stays_silent_is_one_sentence(monkeypatch):
    rows, left = remote(monkeypatch, failures=1000)
    with pytest.raises(DataError, match=r"data set x cannot be read \(.*\); check its name, .* your network"):
        list(rows)
    assert len(left) <= 1000 - datasets.config.STREAMING_READ_MAX_RETRIES
