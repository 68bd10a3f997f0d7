"""The relay of a link with delay and loss, with pairs of sockets for its devices."""

import os
import random
import socket
import threading
import time
from contextlib import suppress

import pytest

from benchmarks import relay


@pytest.fixture
def cable(monkeypatch):
    """Starts the relay; returns the ends of its two devices, and the pipe that ends it."""
    monkeypatch.setattr(relay, "LINGER", 0.2)
    threads, sockets = [], []

    def start(delay, loss=0.0):
        (port, here), (far, there) = (socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2))
        sockets.extend((port, here, far, there))
        end, hold = os.pipe()
        arguments = (port.fileno(), far.fileno(), end, delay, loss, random.Random(1))
        threads.append(threading.Thread(target=relay.carry, args=arguments))
        threads[-1].start()
        there.settimeout(5)
        here.settimeout(5)
        return here, there, hold

    yield start
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    for each in sockets:
        each.close()


def test_frames_are_late_and_in_order_and_come_back_at_once(cable):
    here, there, hold = cable(0.1)
    began = time.monotonic()
    for number in range(3):
        here.send(bytes([number]))
    assert [there.recv(9) for _ in range(3)] == [b"\0", b"\1", b"\2"]
    assert time.monotonic() - began >= 0.1
    there.send(b"back")
    assert here.recv(9) == b"back"
    os.close(hold)


def test_frames_of_a_process_that_has_ended_arrive(cable):
    here, there, hold = cable(0.1)
    here.send(b"the last one")
    os.close(hold)
    assert there.recv(99) == b"the last one"


def test_a_share_of_frames_is_lost(cable):
    here, there, hold = cable(0.0, loss=0.5)
    for number in range(100):
        here.send(bytes([number]))
        time.sleep(0.001)
    os.close(hold)
    there.settimeout(0.5)
    arrived = 0
    with suppress(TimeoutError):
        while there.recv(9):
            arrived += 1
    assert 30 < arrived < 70
