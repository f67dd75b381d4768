"""The small pieces of Envoy configuration that listener and clusters share: addresses, durations, type names."""

from __future__ import annotations

import ipaddress
from typing import Any, Literal

from fairlead.addresses import host_and_port, is_ip
from fairlead.api import headers
from fairlead.errors import UserError

type_url = "type.googleapis.com/{}".format

Part = dict[str, Any]
Mode = Literal["buffered", "full_duplex"]

DESTINATION = headers.DESTINATION.decode()
ENGINES_CLUSTER = "engines"
SIDECAR_CLUSTER = "fairlead"
BLIND_CLUSTER = "blind"  # all engines, for requests without advice

# Envoy keeps buffer limits and HTTP/2 windows in 31 bits.
MOST_BODY_BYTES = 2**31 - 1

# What Envoy takes from a connection before it asks again whether it may. With more, clients that all send at once, or
# that do not read their answers, fill its memory before it notices. Bodies have a limit of their own.
CONNECTION_BUFFER_BYTES = 65_536

# Of a request, and of an engine's answer. Above it Envoy answers by itself; below it there must be room for the
# sidecar's headers.
MOST_HEADERS = 200

# Envoy refuses a longer wait for one message of the processor.
MOST_PROCESSOR_TIMEOUT_MS = 3_600_000


def codec() -> Part:
    """The last filter of an upstream's own."""
    name = "envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec"
    return {"name": "envoy.filters.http.upstream_codec", "typed_config": {"@type": type_url(name)}}


def seconds(duration_ms: float) -> str:
    """A duration as protobuf's JSON form writes it."""
    return f"{duration_ms / 1000:.3f}s"


def listen_on(key: str, address: str) -> Part:
    """An address that Envoy binds. Raises UserError for a host name: Envoy binds IP addresses only."""
    try:
        host, port = host_and_port(address)
    except ValueError as error:
        raise UserError(f"{key}: {error}") from None
    if not is_ip(host):
        example = "127.0.0.1" if host == "localhost" else "0.0.0.0"
        raise UserError(f'{key}: "{host}" is a name and Envoy listens on IP addresses only; write {example}:{port}')
    bound, address_of_host = _socket(host, port), ipaddress.ip_address(host)
    if address_of_host.version == 6 and address_of_host.is_unspecified:
        bound["socket_address"]["ipv4_compat"] = True  # as any other server takes it, the sidecar's too
    return bound


def connect_to(address: str) -> Part:
    """An address that Envoy connects to: `host:port` or `unix:/path`."""
    if address.startswith("unix:"):
        return {"pipe": {"path": address.removeprefix("unix:")}}
    host, port = host_and_port(address)
    if is_ip(host) and (wildcard := ipaddress.ip_address(host)).is_unspecified:
        host = "127.0.0.1" if wildcard.version == 4 else "::1"  # a server on "any address" is reached on loopback
    return _socket(host, port)


def discovery(addresses: list[str]) -> Part:
    """STATIC when no name has to be looked up: then Envoy needs no DNS to start."""
    named = any(not address.startswith("unix:") and not is_ip(host_and_port(address)[0]) for address in addresses)
    return {"type": "STRICT_DNS", "dns_lookup_family": "V4_PREFERRED"} if named else {"type": "STATIC"}


def endpoints(cluster: str, addresses: list[str]) -> Part:
    hosts = [{"endpoint": {"address": connect_to(address)}} for address in addresses]
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": hosts}]}


def _socket(host: str, port: int) -> Part:
    return {"socket_address": {"address": host, "port_value": port}}
