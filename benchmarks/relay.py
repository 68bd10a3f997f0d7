"""A bad cable: delays and loses the Ethernet frames that a process sends. Started by `link.py`, one for each process.

Not every kernel has tc-netem(8), so a program carries the frames from one TAP device to another. It needs the time of a
core for tens of thousands of frames a second; at 100 Mbit/s there are 8,000.
"""

import argparse
import ctypes
import fcntl
import heapq
import math
import os
import random
import select
import struct
import sys
import time
from contextlib import suppress

TUN = "/dev/net/tun"
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000  # of linux/if_tun.h
LINGER = 2.0  # seconds; chosen: several times the 0.2 s after which Linux sends a lost frame again
LARGEST = 65536  # bytes; a TAP device passes on one frame with each read


def open_tap(name: str) -> int:
    """Makes the device in the namespace that this process is in; it vanishes when the descriptor is closed."""
    tap = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return tap


def enter_network(process: int) -> None:
    """From now on, this process makes devices in the network namespace of `process`."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{process}/ns/net") as namespace:
        if libc.setns(namespace.fileno(), 0):
            raise OSError(ctypes.get_errno(), "the switch's namespace cannot be entered")


def carry(port: int, far: int, end: int, delay: float, loss: float, lose: random.Random) -> None:
    """Carries frames from `port` to `far`, late and with losses, and back at once, until LINGER after `end` is closed.

    A process that has ended has sent frames that its partner still waits for, and TCP sends lost ones again.
    """
    waiting: list[tuple[float, int, bytes]] = []
    number, watched, last = 0, [port, far, end], math.inf
    while (now := time.monotonic()) < last:
        due = min(last, waiting[0][0]) if waiting else last
        ready, _, _ = select.select(watched, [], [], None if due == math.inf else max(0.0, due - now))
        if end in ready:
            watched, last = [port, far], time.monotonic() + delay + LINGER
        if far in ready:
            pass_on(os.read(far, LARGEST), port)
        if port in ready:
            frame = os.read(port, LARGEST)
            if lose.random() >= loss:
                number += 1  # frames of the same time stay in order
                heapq.heappush(waiting, (time.monotonic() + delay, number, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            pass_on(heapq.heappop(waiting)[2], far)


def pass_on(frame: bytes, device: int) -> None:
    with suppress(OSError):  # a device that is not up yet loses it
        os.write(device, frame)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", required=True, help="name of the device here")
    parser.add_argument("--far", required=True, help="name of the device at the switch")
    parser.add_argument("--switch", type=int, required=True, help="process whose network namespace has the switch")
    parser.add_argument("--delay", type=float, default=0, help="seconds that a frame takes")
    parser.add_argument("--loss", type=float, default=0, help="share of frames that are lost")
    arguments = parser.parse_args()
    port = open_tap(arguments.port)
    enter_network(arguments.switch)
    far = open_tap(arguments.far)
    print("ready", flush=True)
    carry(port, far, sys.stdin.fileno(), arguments.delay, arguments.loss, random.Random(arguments.far))


if __name__ == "__main__":
    main()
