"""Addresses as a configuration writes them: checked, and told how to write them better.

Each check returns its text or raises ValueError that says what to write instead.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator


def host_and_port(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`. Raises ValueError with what to write instead."""
    if "://" in address:
        raise ValueError(f'"{address}" is a URL; write host:port, for example {address.split("://", 1)[1].rstrip("/")}')
    host, colon, port = address.rpartition(":")
    if not colon or not host or "]" in port:
        raise ValueError(f'"{address}" has no port; write host:port, for example {address or "127.0.0.1"}:8000')
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f'"{address}" is an IPv6 address without brackets; write [{host}]:{port}')
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f'"{port}" is not a port; write a number from 1 to 65535')
    if any(character.isspace() or character in "/,@" for character in host):
        raise ValueError(f'"{host}" is not a host name or address')
    return host.strip("[]"), int(port)


def _address(value: str) -> str:
    host_and_port(value)
    return value


def _grpc_address(value: str) -> str:
    if value.startswith("unix:"):
        if len(value) < len("unix:/x") or not value.startswith("unix:/"):
            raise ValueError(f'"{value}" is not an absolute socket path; write unix:/run/fairlead.sock')
        return value
    return _address(value)


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


def without_password(store: str) -> str:
    """`store` as it may be shown: without user and password."""
    scheme, separator, rest = store.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _zmq_address(value: str) -> str:
    if not re.fullmatch(r"tcp://[^\s:/]+:\d+|ipc://\S+", value):
        raise ValueError(f'"{value}" is not a ZMQ address; write tcp://host:port, for example tcp://127.0.0.1:5557')
    return value


Address = Annotated[str, AfterValidator(_address)]
GrpcAddress = Annotated[str, AfterValidator(_grpc_address)]
ZmqAddress = Annotated[str, AfterValidator(_zmq_address)]
Store = Annotated[str, AfterValidator(_store)]
