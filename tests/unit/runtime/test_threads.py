"""Processes on the same cores take a part of torch's threads each."""

import os
import socket
from types import SimpleNamespace

import pytest
import torch

from comera_dist.runtime.threads import share_threads

HOST, CORES = "host", frozenset(range(8))


@pytest.fixture
def threads(monkeypatch):
    """The numbers of threads that torch was told; at first it takes 8."""
    told = [8]
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: CORES)
    monkeypatch.setattr(torch, "get_num_threads", lambda: told[-1])
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return told


def among(*others):
    """Processes of which this one is the first."""
    return SimpleNamespace(gather=lambda mine: [mine, *others])


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], 8),
        ([(HOST, CORES)], 4),
        ([(HOST, CORES)] * 2, 2),
        ([(HOST, CORES)] * 15, 1),
        ([("another host", CORES)] * 2, 8),
        ([(HOST, frozenset({8, 9}))], 8),  # a launcher has bound the other one to cores of its own
    ],
)
def test_processes_on_the_same_cores_share_the_threads(threads, others, expected):
    share_threads(among(*others))
    assert threads[-1] == expected


def test_the_users_number_stays(threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    share_threads(among((HOST, CORES)))
    assert threads == [8]


def test_without_sets_of_cores_a_process_may_use_all(threads, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    share_threads(among((HOST, None)))
    assert threads[-1] == 4
