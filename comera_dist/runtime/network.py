"""The network between the hosts of a run: the first host's name, and the interface that leads to the other hosts."""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address

import psutil

from comera_dist.errors import MeetingError

NAME_SECONDS = 120  # chosen: a scheduler of containers publishes a new host's name within a minute or so
RETRY_SECONDS = 1.0  # chosen: a look-up costs nothing beside a start
ANYWHERE = "192.0.2.1"  # an address of documentation (RFC 5737), which only a default route leads to


def wait_for_name(name: str, seconds: float = NAME_SECONDS) -> None:
    """Returns when `name` has an address. MeetingError if it has none after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        try:
            socket.getaddrinfo(name, None)
            return
        except OSError as error:
            if time.monotonic() >= end:
                raise MeetingError(
                    f"MASTER_ADDR = {name!r} has no address on host {socket.gethostname()} after {seconds:.0f} s "
                    f"({error.strerror}); set it to a name or address of the first host that all hosts know"
                ) from error
        time.sleep(RETRY_SECONDS)


def choose_interface(address: str, variables: Mapping[str, str] = os.environ) -> str | None:
    """The interface by which gloo must be reached if the first process is at `address`; None if gloo may choose.

    By itself gloo takes the address of the own host's name. On Debian this is 127.0.1.1, which no other host can reach.
    """
    if "GLOO_SOCKET_IFNAME" in variables or is_loopback(address):
        return None
    own = own_address(address)
    if own is not None and not is_loopback(own):
        return _interface_of(own)
    # The first host knows itself by such a name, but the others reach it from outside.
    own = own_address(ANYWHERE)
    return _interface_of(own) if own is not None else _only_interface()


def is_loopback(address: str) -> bool:
    """Whether `address` stands for the own host on every host."""
    with suppress(ValueError):
        return ip_address(address).is_loopback
    return address == "localhost"


def own_address(address: str) -> str | None:
    """The address from which this host sends to `address`; None if no route leads there. Sends nothing."""
    with suppress(OSError):
        family, kind, protocol, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    return None


def _interface_of(address: str) -> str | None:
    return next((name for name, addresses in _interfaces().items() if address in addresses), None)


def _only_interface() -> str | None:
    """The interface that leads out of this host, if there is just one."""
    found = [name for name, addresses in _interfaces().items() if not any(map(is_loopback, addresses))]
    return found[0] if len(found) == 1 else None


def _interfaces() -> dict[str, list[str]]:
    """Addresses of each interface that is up and has one."""
    state, families = psutil.net_if_stats(), (socket.AF_INET, socket.AF_INET6)
    named = {
        name: [one.address.partition("%")[0] for one in addresses if one.family in families]
        for name, addresses in psutil.net_if_addrs().items()
    }
    return {name: addresses for name, addresses in named.items() if addresses and state[name].isup}
