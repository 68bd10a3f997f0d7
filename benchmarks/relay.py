"""A bad cable: delays and loses the Ethernet frames that a process sends. Started by `link.py`, one for each process.

Not every kernel has tc-netem(8), so a program carries the frames from one TAP device to another. It needs the time of a
core for tens of thousands of frames a second; at 100 Mbit/s there are 8,000.
"""

import argparse
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time
from contextlib import suppress

TUN = "/dev/net/tun"
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000  # of linux/if_tun.h
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
    """Carries frames until `end` is closed: from `port` to `far` late and with losses, back at once."""
    waiting: list[tuple[float, int, bytes]] = []
    number = 0
    while True:
        patience = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([port, far, end], [], [], patience)
        if end in ready:
            return
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
