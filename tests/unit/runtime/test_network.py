"""The first host's name is waited for, and gloo listens where the other hosts can reach it."""

import socket
from collections import namedtuple

import pytest

from comera_dist.errors import MeetingError
from comera_dist.runtime import network
from comera_dist.runtime.network import choose_interface, is_loopback, own_address, wait_for_name

Address = namedtuple("Address", "family address")
State = namedtuple("State", "isup")
LOOPBACK = [Address(socket.AF_INET, "127.0.0.1"), Address(socket.AF_INET6, "::1"), Address(socket.AF_PACKET, "00:00")]
CARD = [Address(socket.AF_INET, "10.0.0.5"), Address(socket.AF_INET6, "fe80::1%card")]
SECOND_CARD = [Address(socket.AF_INET, "10.1.0.5")]


@pytest.fixture
def host(monkeypatch):
    """A host with given interfaces, and the own address that it sends from to each target."""

    def make(interfaces: dict, routes: dict, down: tuple = ()) -> None:
        monkeypatch.setattr(network.psutil, "net_if_addrs", lambda: interfaces)
        states = {name: State(name not in down) for name in interfaces}
        monkeypatch.setattr(network.psutil, "net_if_stats", lambda: states)
        monkeypatch.setattr(network, "own_address", routes.get)

    return make


@pytest.mark.parametrize(
    ("interfaces", "routes", "expected"),
    [
        # A worker, and a first host that its own name leads to a card.
        ({"lo": LOOPBACK, "card": CARD}, {"first": "10.0.0.5"}, "card"),
        ({"lo": LOOPBACK, "card": CARD, "other": SECOND_CARD}, {"first": "10.1.0.5"}, "other"),
        # Debian's first host: its own name leads to 127.0.1.1.
        ({"lo": LOOPBACK, "card": CARD}, {"first": "127.0.1.1"}, "card"),
        ({"lo": LOOPBACK, "card": CARD, "other": SECOND_CARD}, {"first": "127.0.1.1", "192.0.2.1": "10.0.0.5"}, "card"),
        ({"lo": LOOPBACK, "card": CARD, "other": SECOND_CARD}, {"first": "127.0.1.1"}, None),
        ({"lo": LOOPBACK}, {"first": "127.0.1.1"}, None),
        # No route at all: the meeting will fail with its own sentence.
        ({"lo": LOOPBACK, "card": CARD}, {}, "card"),
    ],
)
def test_gloo_takes_the_interface_that_leads_to_the_other_hosts(host, interfaces, routes, expected):
    host(interfaces, routes)
    assert choose_interface("first", {}) == expected


def test_an_interface_that_is_down_does_not_count(host):
    host({"lo": LOOPBACK, "card": CARD, "other": SECOND_CARD}, {"first": "127.0.1.1"}, down=("other",))
    assert choose_interface("first", {}) == "card"


def test_a_choice_of_the_user_and_runs_on_one_host_stay_as_they_are(host):
    host({"lo": LOOPBACK, "card": CARD}, {"first": "10.0.0.5", "127.0.0.1": "127.0.0.1"})
    assert choose_interface("first", {"GLOO_SOCKET_IFNAME": "other"}) is None
    for address in ("127.0.0.1", "localhost", "::1"):
        assert choose_interface(address, {}) is None


def test_the_own_address_is_the_one_that_the_kernel_sends_from():
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("no-such-host.invalid") is None
    assert is_loopback("127.0.1.1")
    assert not is_loopback("10.0.0.5")
    assert not is_loopback("host0")


def test_a_name_that_appears_late_is_waited_for(monkeypatch):
    asked = []

    def look_up(name: str, port: None) -> list:
        asked.append(name)
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return []

    monkeypatch.setattr(network.socket, "getaddrinfo", look_up)
    monkeypatch.setattr(network.time, "sleep", lambda seconds: None)
    wait_for_name("pod-0")
    assert asked == ["pod-0"] * 3


def test_a_name_that_never_appears_is_said():
    with pytest.raises(MeetingError, match=r"MASTER_ADDR = 'no-such-host.invalid' has no address on host .* after 0 s"):
        wait_for_name("no-such-host.invalid", seconds=0)


def test_processes_that_do_not_meet_end_with_the_status_that_asks_for_another_start(monkeypatch, capsys):
    from comera_dist.commands import pretrain
    from comera_dist.runtime import processes

    def fail(timeout_seconds: int) -> None:
        raise MeetingError("process 1 of 2 does not meet the others")

    monkeypatch.setattr(processes, "start_processes", fail)
    config = type("Config", (), {"train": type("Train", (), {"timeout_seconds": 1})})
    assert pretrain._pretrain(config, {}) == 75
    assert capsys.readouterr().err == "MeetingError: process 1 of 2 does not meet the others\n"
