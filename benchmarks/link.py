"""Links of a chosen rate between processes of one machine: Linux network namespaces on a bridge.

Each process has a namespace of its own with one virtual Ethernet port, and all ports hang on one bridge. A token bucket
(tc-tbf(8)) holds back what a process sends, so that a ring of processes sees full-duplex links of that rate. The
machine's own interfaces are not touched and nothing has to be undone: namespaces without a name vanish with their last
process, however it ends. The right to all this comes from a user namespace.
"""

import os
import subprocess

import psutil

BRIDGE, PORT, NETWORK = "bridge", "port", "10.77.0"
# The bridge itself sends nothing: its token bucket only finds out whether one is permitted.
SET_UP = f"""
ip link add {BRIDGE} type bridge && ip link set {BRIDGE} up &&
tc qdisc add dev {BRIDGE} root tbf rate 1gbit burst 125kb latency 1s && echo ready && exec cat
"""


class Switch:
    """A bridge that lives inside `with`. OSError, with the reason, where it or a shaped link is not permitted.

    Good for one group of processes: the kernel takes away the ports of ended ones late, and their addresses with them.
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
        """What a command is preceded by to start in a namespace of its own; it has to call `plug_in` there."""
        return ["nsenter", f"--target={self.pid}", "--user", "--preserve-credentials", "unshare", "--net"]


def plug_in(switch: int, index: int) -> None:
    """Connects this process's namespace with the switch of that pid and tells torch to meet there.

    `index` is the process's own; process 0 hosts the store of the process group.
    """
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


def limit(megabits: int | None) -> None:
    """Holds what this process sends to so many Mbit/s; None takes the limit away."""
    if megabits is None:
        _run(f"tc qdisc replace dev {PORT} root noqueue")
        return
    # What may pass at once after a pause: a millisecond's worth, and no less than the largest packet that the kernel
    # hands on whole (64 KiB): it would be cut up before it is counted, and rates would differ in headers.
    burst = max(70_000, megabits * 125)
    _run(f"tc qdisc replace dev {PORT} root tbf rate {megabits}mbit burst {burst} latency 1s")


def sent_bytes() -> int:
    """What has left this process's port so far, with the headers of packets of up to 64 KiB."""
    return psutil.net_io_counters(pernic=True, nowrap=False)[PORT].bytes_sent


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True)
