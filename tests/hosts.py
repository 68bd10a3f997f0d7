"""Two hosts on one machine, joined by a cable: Linux namespaces with own network, name, processes and /etc/hosts.

Nothing must be undone: a host is a process that waits for its input to end. With it the kernel ends every process of
the host, and removes its network.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from forked import Ended, end_each

NAMES, ADDRESSES, CARD = ("host0", "host1"), ("10.78.0.1", "10.78.0.2"), "eth0"
OPTIONS = ("--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
# Options of nsenter and names in /proc, in the order of entering: /proc is another one after the last.
NAMESPACES = {"--net": "net", "--uts": "uts", "--pid": "pid_for_children", "--mount": "mnt"}
PR_SET_PDEATHSIG, SIGKILL = 1, 9  # of prctl.h and signal.h


class Host:
    """A host that lives inside `with`. PermissionError with the reason if namespaces are not permitted."""

    def __init__(self, index: int, folder: Path):
        self._file = folder / f"hosts_of_{NAMES[index]}"
        # So does Debian's installer name a host in its own file: by an address that other hosts cannot reach.
        other = f"{ADDRESSES[1 - index]} {NAMES[1 - index]}"
        self._file.write_text(f"127.0.0.1 localhost\n127.0.1.1 {NAMES[index]}\n{other}\n")
        self._set_up = f"hostname {NAMES[index]} && mount --bind {self._file} /etc/hosts && ip link set lo up"

    def __enter__(self) -> "Host":
        command = ["unshare", *OPTIONS, "sh", "-c", f"{self._set_up} && echo ready && exec cat"]
        # The pipe closes when this process ends, also by SIGKILL, and `cat` ends with it.
        self._holder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        if self._holder.stdout.readline() != "ready\n":
            _, reason = self._holder.communicate()
            raise PermissionError(" ".join(reason.split()) or "namespaces are not permitted")
        self.namespaces = {option: f"/proc/{self._holder.pid}/ns/{name}" for option, name in NAMESPACES.items()}
        return self

    def __exit__(self, *_) -> None:
        self._holder.communicate()

    @property
    def command(self) -> list[str]:
        """Prefix of a command that starts it on this host, in the present folder."""
        return ["nsenter", *(f"{option}={path}" for option, path in self.namespaces.items()), f"--wdns={os.getcwd()}"]

    def run(self, command: str) -> None:
        subprocess.run([*self.command, *command.split()], check=True)


@contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[Host, Host]]:
    """Two hosts and a cable between them; skips the test where this is not permitted."""
    try:
        with Host(0, folder) as first, Host(1, folder) as second:
            ends = [f"{CARD} netns {host.namespaces['--net']}" for host in (first, second)]
            subprocess.run(f"ip link add {ends[0]} type veth peer name {ends[1]}".split(), check=True)
            for host, address in zip((first, second), ADDRESSES, strict=True):
                host.run(f"ip address add {address}/24 dev {CARD}")
                host.run(f"ip link set {CARD} up")
            yield first, second
    except (PermissionError, FileNotFoundError) as error:
        pytest.skip(f"two hosts cannot be made here: {error}")


@contextmanager
def unplugged(host: Host) -> Iterator[None]:
    """While entered, the cable is cut at `host`."""
    host.run(f"ip link set {CARD} down")
    try:
        yield
    finally:
        host.run(f"ip link set {CARD} up")


def end_on_hosts(hosts: tuple[Host, ...], variables: list[dict], scenario: str, **arguments) -> list[Ended]:
    """Calls `scenario` in a process on each host, with `variables` of its own; returns how each ended."""
    enters = [partial(enter, list(host.namespaces.values())) for host in hosts]
    return end_each(list(zip(variables, enters, strict=True)), scenario, **arguments)


def enter(namespaces: list[str]) -> None:
    """Takes this process into namespaces. It goes on as a fork of itself: no process changes its own number."""
    libc = ctypes.CDLL(None, use_errno=True)
    for opened in [os.open(path, os.O_RDONLY) for path in namespaces]:
        if libc.setns(opened, 0):
            raise OSError(ctypes.get_errno(), "a namespace cannot be entered")
        os.close(opened)
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) % 256)
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL)  # who ends this process knows its parent only


SSH_CLIENT = "IdentityFile {key}\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
SSH_SERVER = "HostKey {key}\nAuthorizedKeysFile {key}.pub\nStrictModes no\nUsePAM no\nPidFile none\n"


def let_in_by_ssh(hosts: tuple[Host, ...], folder: Path) -> None:
    """Each host lets the other and itself in by ssh, with a key that serves hosts and users and is thrown away."""
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    for name, text in (("ssh_config", SSH_CLIENT), ("sshd_config", SSH_SERVER)):
        (folder / name).write_text(text.format(key=key))
    for host in hosts:
        host.run(f"mount --bind {folder}/ssh_config /etc/ssh/ssh_config")
        host.run("mount -t tmpfs none /run")
        host.run("mkdir /run/sshd")  # where the server has no rights
        host.run(f"{shutil.which('sshd')} -f {folder}/sshd_config")


# They take pdsh's and ssh's arguments as DeepSpeed gives them: options first, the host after -w or by itself.
SSH = """#!/bin/bash
while [[ $1 == -* ]]; do [[ $1 == -o ]] && shift; shift; done
host=$1; shift
exec "$(dirname "$0")/$host" "$@"
"""
PDSH = """#!/bin/bash
highest=0 number=0
while [[ $1 == -* ]]; do case $1 in -w) hosts=$2; shift ;; -f) shift ;; esac; shift; done
for host in ${hosts//,/ }; do
    "$(dirname "$0")/$host" "${@//%n/$number}" & started+=($!); (( number += 1 ))
done
for one in ${started[*]}; do wait $one || highest=$?; done
exit $highest
"""


def replace_ssh(hosts: tuple[Host, ...], folder: Path) -> Path:
    """A folder for PATH with commands pdsh and ssh that enter the hosts without a server."""
    fakes = folder / "fakes"
    fakes.mkdir()
    doors = {NAMES[i]: f'#!/bin/bash\nexec {" ".join(host.command)} bash -c "$*"\n' for i, host in enumerate(hosts)}
    for name, text in ({"ssh": SSH, "pdsh": PDSH} | doors).items():
        (fakes / name).write_text(text)
        (fakes / name).chmod(0o755)
    return fakes
