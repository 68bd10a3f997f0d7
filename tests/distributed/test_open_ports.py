"""A run listens at no port that another host could reach, except for the rendezvous of several processes."""

import ipaddress

import forked
import pytest
from forked import run_processes
from support import tiny_run

pytestmark = pytest.mark.distributed


def reachable(sockets) -> set[int]:
    """Ports at addresses other than the loopback's."""
    return {port for address, port in sockets if not ipaddress.ip_address(address).is_loopback}


def test_one_process_listens_to_its_own_host_alone(tiny_corpus, tmp_path):
    overrides = tiny_run(tiny_corpus, tmp_path, "one", "train.steps=1", "wandb.mode=offline")
    (sockets,) = run_processes(1, "listening_sockets", overrides=overrides)
    assert sockets, "gloo listens at the loopback, so the look was in vain"
    assert reachable(sockets) == set()


def test_two_processes_open_the_rendezvous_alone(tiny_corpus, tmp_path, monkeypatch):
    port = forked.free_port()
    monkeypatch.setattr(forked, "free_port", lambda: port)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # by which a user keeps the traffic of one host on it
    overrides = tiny_run(tiny_corpus, tmp_path, "two", "train.steps=1")
    first, second = run_processes(2, "listening_sockets", overrides=overrides)
    assert (reachable(first), reachable(second)) == ({int(port)}, set())
