"""Links of a chosen rate between processes of one machine: Linux network namespaces on a bridge.

Each process has its own namespace with one virtual Ethernet port, and one bridge connects all ports. A token bucket
(tc-tbf(8)) limits the rate at which a process sends, so a ring of processes sees full-duplex links of that rate. The
machine's own interfaces are not touched and nothing must be undone: unnamed namespaces vanish with their last process,
however it ends. A user namespace gives the permissions.
"""

import os
import subprocess

import psutil

BRIDGE, PORT, NETWORK = "bridge", "port", "10.77.0"
# The bridge itself sends nothing: its token bucket only tests whether one is permitted.
SET_UP = f"""
ip link add {BRIDGE} type bridge && ip link set {BRIDGE} up &&
tc qdisc add dev {BRIDGE} root tbf rate 1gbit burst 125kb latency 1s && echo ready && exec cat
"""


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


def plug_in(switch: int, index: int) -> None:
    """Connects this process's namespace to the Switch with the pid `switch`, and tells torch to use that network.

    `index` is the rank of this process; process 0 hosts the store of the process group.
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
