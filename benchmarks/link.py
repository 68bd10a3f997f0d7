"""Links of a chosen rate, delay and loss between processes of one machine: Linux network namespaces on a bridge.

Each process has its own namespace with one virtual Ethernet port, and one bridge connects all ports. A token bucket
(tc-tbf(8)) limits the rate at which a process sends, so a ring of processes sees full-duplex links of that rate. Where
a link has delay or loss, a program carries the frames instead of the kernel (`relay.py`). The machine's own interfaces
are not touched and nothing must be undone: unnamed namespaces vanish with their last process, however it ends. A user
namespace gives the permissions.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.relay import TUN

BRIDGE, PORT, NETWORK = "bridge", "port", "10.77.0"
# The bridge itself sends nothing: its token bucket only tests whether one is permitted.
SET_UP = f"""
ip link add {BRIDGE} type bridge && ip link set {BRIDGE} up &&
tc qdisc add dev {BRIDGE} root tbf rate 1gbit burst 125kb latency 1s && echo ready && exec cat
"""


@dataclass(frozen=True)
class Link:
    """Rate in Mbit/s (None: unlimited), milliseconds from one process to another, and share of lost packets."""

    megabits: int | None = None
    delay_ms: float = 0
    loss: float = 0

    @property
    def is_relayed(self) -> bool:
        return self.delay_ms > 0 or self.loss > 0


def can_relay() -> bool:
    return os.access(TUN, os.R_OK | os.W_OK)


_RELAYS: list[subprocess.Popen] = []  # a relay whose pipe is forgotten ends


class Switch:
    """A bridge that lives inside `with`. PermissionError with the reason if it or a limited link is not permitted.

    Use it for one group of processes only: the kernel removes the ports and addresses of ended processes late.
    """

    def __enter__(self) -> "Switch":
        command = ["unshare", "--map-root-user", "--net", "sh", "-c", SET_UP]
        # The pipe closes when this process ends, also by SIGKILL, and `cat` ends with it.
        self._holder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if self._holder.stdout.readline() != "ready\n":
            _, reason = self._holder.communicate()
            raise PermissionError(" ".join(reason.split()) or "namespaces are not permitted")
        return self

    def __exit__(self, *_) -> None:
        self._holder.communicate()

    @property
    def pid(self) -> int:
        return self._holder.pid

    @property
    def command(self) -> list[str]:
        """Prefix of a command that starts it in its own namespace, where it must call `plug_in`."""
        return ["nsenter", f"--target={self.pid}", "--user", "--preserve-credentials", "unshare", "--net"]


def plug_in(switch: int, index: int, link: Link) -> None:
    """Connects this process's namespace to the Switch with the pid `switch`, and tells torch to use that network.

    `index` is the rank of this process; process 0 hosts the store of the process group. `limit` sets the link's rate.
    """
    if link.is_relayed:
        _start_relay(switch, index, link)
    else:
        _run(f"ip link add {PORT} type veth peer name {PORT}{index} netns {switch}")
    _run(f"nsenter --target {switch} --net ip link set {PORT}{index} master {BRIDGE} up")
    _run(f"ip address add {NETWORK}.{index + 1}/24 dev {PORT}")
    for name in ("lo", PORT):
        _run(f"ip link set {name} up")
    os.environ |= {
        "MASTER_ADDR": f"{NETWORK}.1",
        "GLOO_SOCKET_IFNAME": PORT,
        # The launcher's own store is not reachable from here.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _start_relay(switch: int, index: int, link: Link) -> None:
    devices = ["--port", PORT, "--far", f"{PORT}{index}", "--switch", str(switch)]
    badness = ["--delay", str(link.delay_ms / 1000), "--loss", str(link.loss)]
    command = [sys.executable, str(Path(__file__).with_name("relay.py")), *devices, *badness]
    # The pipe closes when this process ends, and the relay ends with it.
    relay = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if relay.stdout.readline() != "ready\n":
        raise OSError("the relay of a link with delay or loss has not started")
    _RELAYS.append(relay)


def limit(megabits: int | None) -> None:
    """Limits the sending rate of this process to `megabits` Mbit/s; None removes the limit."""
    if megabits is None:
        _run(f"tc qdisc replace dev {PORT} root noqueue")
        return
    # Bytes that may pass at once after a pause: those of a millisecond, but at least the largest packet that the kernel
    # passes on whole (64 KiB). Smaller bursts would split packets before they are counted, which adds headers.
    burst = max(70_000, megabits * 125)
    _run(f"tc qdisc replace dev {PORT} root tbf rate {megabits}mbit burst {burst} latency 1s")


def sent_bytes() -> int:
    """Bytes that this process's port has sent so far, including the headers of packets of up to 64 KiB."""
    return psutil.net_io_counters(pernic=True, nowrap=False)[PORT].bytes_sent


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)
