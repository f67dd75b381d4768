"""Checks of addresses in a configuration.

Each check returns its text or raises ValueError that says what to write instead.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from typing import Annotated, Final

from pydantic import AfterValidator


def host_and_port(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`. Raises ValueError with what to write instead."""
    if "@" in address:  # not shown: there may be a password before it
        raise ValueError("has an @, and credentials are no part of an address; write host:port, such as 10.0.0.1:8000")
    if "://" in address:
        raise ValueError(f'"{address}" is a URL; write host:port, for example {address.split("://", 1)[1].rstrip("/")}')
    host, colon, port = address.rpartition(":")
    if not host and port.isdecimal():
        raise ValueError(f'"{address}" has no host; write host:port, for example 127.0.0.1:{port}')
    if ":" in host and not host.startswith("["):
        better = f"[{host}]:{port}" if _is_ipv6(host) or not _is_ipv6(address) else f"[{address}]:8000"
        raise ValueError(f'"{address}" is an IPv6 address without brackets; write {better}')
    if not colon or not host or not port or "]" in port:
        example = f"{(host if colon and not port else address) or '127.0.0.1'}:8000"
        raise ValueError(f'"{address}" has no port; write host:port, for example {example}')
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
        raise ValueError(f'"{port}" is not a port; write a number from 1 to 65535')
    if host.startswith("[") or host.endswith("]"):
        if not (host.startswith("[") and host.endswith("]") and _is_ipv6(host[1:-1])):
            raise ValueError(f'"{host}" is not an IPv6 address in brackets; write [::1]:{port}, or a name without them')
    elif any(character.isspace() or character in "/," for character in host):
        raise ValueError(f'"{host}" is not a host name or address')
    return host.strip("[]"), int(port)


def is_ip(host: str) -> bool:
    """Whether `host`, without brackets, is an IP address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def canonical(host: str, port: int) -> str:
    """`ip:port` or `[v6]:port` as Envoy writes it, which says in this form who served. Raises ValueError for a name."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        ip = socket.inet_ntop(family, socket.inet_pton(family, host))
    except OSError:
        raise ValueError(f'"{host}" is not an IP address') from None
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def header_name(value: str) -> str:
    """Raises ValueError for an invalid header name."""
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", value):
        raise ValueError(
            f'"{value}" is not the name of a header; write letters, digits and -, for example x-session-id'
        )
    return value


def are_one(one: str, other: str) -> bool:
    """Whether two servers of one machine cannot listen at both addresses: one port, and hosts that overlap."""
    hosts = {_host(one), _host(other)}
    return host_and_port(one)[1] == host_and_port(other)[1] and (len(hosts) == 1 or bool(hosts & _EVERY_HOST))


def reaches(address: str, listener: str) -> bool:
    """Whether a connection to `address`, made on the machine of `listener`, certainly ends at `listener`."""
    if host_and_port(address)[1] != host_and_port(listener)[1]:
        return False
    host, listening = _host(address), _host(listener)
    return host == listening or (host in _LOOPBACK and listening in _EVERY_HOST)


def _host(address: str) -> str:
    host = host_and_port(address)[0].lower()
    return "127.0.0.1" if host == "localhost" else host


def _address(value: str) -> str:
    host_and_port(value)
    return value


def _grpc_address(value: str) -> str:
    if value.startswith("unix:"):
        if len(value) < len("unix:/x") or not value.startswith("unix:/"):
            raise ValueError(f'"{value}" is not an absolute socket path; write unix:/run/fairlead.sock')
        size_bytes = len(os.fsencode(value)) - len("unix:")
        if size_bytes > _LONGEST_SOCKET_PATH:
            message = f"a socket's path may have {_LONGEST_SOCKET_PATH} bytes, this one has {size_bytes}"
            raise ValueError(f"{message}; write a shorter one, for example unix:/run/fairlead.sock")
        return value
    return _address(value)


def _asked_host(value: str) -> str:
    """Raises ValueError for what no `Host` header can be without its port."""
    if not re.fullmatch(r"[^\s/:@?#*\[\]]+", value) and not _is_ipv6(value.removeprefix("[").removesuffix("]")):
        example = "fairlead.prod.svc"
        if found := re.fullmatch(r"(?:\w+://)?([A-Za-z0-9._-]+)(?::\d+)?/?", value):
            example = found[1]
        raise ValueError(f'"{value}" is not a host name alone, and is never asked for; write {example}')
    return value


def _store(value: str) -> str:
    """Raises ValueError without `value` in it: it may hold a password."""
    if value == "memory":
        return value
    example = "memory, or redis://host:6379/0 (rediss:// for TLS)"
    scheme, _, rest = value.partition("://")
    if scheme not in ("redis", "rediss"):
        raise ValueError(f"is not a session store; write {example}")
    secret, _, place = rest.rpartition("@")
    if any(character.isspace() or character in "?#" for character in rest) or set(secret) & set("/[]"):
        raise ValueError(
            f"a space or one of /?#[] is in the way; write {example}, and in a password %2F for / and so on"
        )
    server, slash, database = place.partition("/")
    if slash and not (database.isascii() and database.isdigit() and len(database) < 6):
        raise ValueError(f'the database "{database}" is not a number; write {example}')
    host_and_port(server)
    return value


def without_password(url: str) -> str:
    """`url` as it may be shown: without user and password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _zmq_address(value: str) -> str:
    if not re.fullmatch(r"tcp://[^\s:/]+:\d+|ipc://\S+", value):
        raise ValueError(f'"{value}" is not a ZMQ address; write tcp://host:port, for example tcp://127.0.0.1:5557')
    return value


_LONGEST_SOCKET_PATH: Final = 107  # Linux has room for 108 bytes, the last of which is 0
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})
_EVERY_HOST: Final = frozenset({"0.0.0.0", "::"})

Address = Annotated[str, AfterValidator(_address)]
AskedHost = Annotated[str, AfterValidator(_asked_host)]
HeaderName = Annotated[str, AfterValidator(header_name)]
GrpcAddress = Annotated[str, AfterValidator(_grpc_address)]
ZmqAddress = Annotated[str, AfterValidator(_zmq_address)]
Store = Annotated[str, AfterValidator(_store)]
