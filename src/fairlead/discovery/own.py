"""Where Fairlead and its gateway listen: such an address is no engine, and requests sent there would go in a circle."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from fairlead.addresses import host_and_port, is_ip


class OwnAddresses:
    """`listening` are host:port, any of the machine's addresses where the host is 0.0.0.0 or ::, and unix sockets."""

    def __init__(self, listening: Iterable[str] = ()) -> None:
        self._hosts: dict[int, set[str]] = {}  # by port
        for address in listening:
            if not address.startswith("unix:"):
                host, port = host_and_port(address)
                self._hosts.setdefault(port, set()).add(host)

    def has(self, address: str) -> bool:
        """Whether somebody listens at `address` (ip:port) who is no engine."""
        host, port = host_and_port(address)
        hosts = self._hosts.get(port, set())
        return host in hosts or (not hosts.isdisjoint({"0.0.0.0", "::"}) and _is_of_this_machine(host))


def _is_of_this_machine(host: str) -> bool:
    """Only an address of this machine can be bound to; nothing is sent."""
    if not is_ip(host):
        return False
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True
