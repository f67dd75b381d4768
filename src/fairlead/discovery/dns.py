"""A DNS name whose records are the engines: addresses (A, AAAA), or hosts and ports (SRV), asked again at their TTL.

The library is dnspython: `getaddrinfo` gives neither TTLs nor SRV records, and blocks. What it does not find may stand
in /etc/hosts, so a name without records is looked up there before it counts as empty.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, NamedTuple

import dns.asyncresolver
import dns.exception
import dns.rdatatype
import dns.resolver
import msgspec
import structlog

from fairlead.addresses import host_and_port
from fairlead.discovery.source import DiscoveredEndpoint, EndpointSet, SourceStatus, UnusableError

LEAST_TTL_S: Final = 1.0
LONGEST_TTL_S: Final = 300.0
_LOCAL_TTL_S: Final = 5.0  # of what this machine's own files say
_LOOKUP_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.5  # after a failure
_LONGEST_PAUSE_S: Final = 10.0
_BELIEVED: Final = 3  # answers in a row that there is no engine, before the last ones are given up
_RETURNS: Final = 2  # of addresses that were missing, before answers count as parts of the whole
_KEPT_ANSWERS: Final = 60  # for which an address that is missing counts as there then: of 3 out of 20, 1 in 17,000 is
_MOST_KEPT: Final = 10_000
_ADDRESSES: Final = (dns.rdatatype.A, dns.rdatatype.AAAA)

log = structlog.get_logger("fairlead")


class _Found(NamedTuple):
    addresses: tuple[str, ...]  # ip:port, in a fixed order: servers rotate theirs
    ttl_s: float


class Parts:
    """Answers that name only some of the engines, each time others: as of Consul, Route 53 and Cloud Map.

    An address that is named no more leaves at once, until some have come back: then those stay that were named lately,
    as each that leaves is forgotten with all that it has cached and learned.
    """

    def __init__(self) -> None:
        self._missed: dict[str, int] = {}  # answers in a row that did not name it, by address
        self._returned: deque[int] = deque(maxlen=_RETURNS)  # the answers that named one again
        self._answers = 0

    @property
    def are_parts(self) -> bool:
        return len(self._returned) == _RETURNS and self._answers - self._returned[0] <= _KEPT_ANSWERS

    def whole(self, named: Sequence[str]) -> tuple[str, ...]:
        """What an answer that names these lists, in a fixed order."""
        self._answers += 1
        missed = {address: 1 + count for address, count in self._missed.items() if count < _KEPT_ANSWERS}
        self._returned += [self._answers for address in named if missed.pop(address, 1) > 1]
        lately = sorted(missed, key=lambda address: (missed[address], address))[: max(0, _MOST_KEPT - len(named))]
        self._missed = dict.fromkeys(named, 0) | {address: missed[address] for address in lately}
        return tuple(sorted(self._missed)) if self.are_parts else tuple(named)


class DnsSource:
    """The engines that `name` lists: by SRV where `port` is None, else its addresses with that port.

    `like` is what is known of each of them besides its address; `servers` are asked instead of the system's.
    """

    def __init__(self, name: str, port: int | None, like: DiscoveredEndpoint, servers: Sequence[str] = ()) -> None:
        self.name = f"dns {name}"
        self._host = name
        self._port = port
        self._like = like
        self._servers = servers
        self._parts = Parts()
        self._had: set[tuple[str, dns.rdatatype.RdataType]] = set()  # families of hosts that have had addresses

    async def sets(self, status: SourceStatus) -> AsyncIterator[EndpointSet]:
        resolver = _resolver(self._servers)
        pause_s, empty = _FIRST_PAUSE_S, 0
        while True:
            try:
                found = await self._look_up(resolver)
            except UnusableError as error:
                status.failed(str(error))
                await _sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            pause_s = _FIRST_PAUSE_S
            empty = 0 if found.addresses else empty + 1
            if found.addresses or not status.endpoints or empty >= _BELIEVED:
                were_parts = self._parts.are_parts
                addresses = self._parts.whole(found.addresses)
                if self._parts.are_parts and not were_parts:
                    log.info("its answers name some engines each time: those named lately stay", source=self.name)
                yield tuple(_at(self._like, address) for address in addresses)
                await _sleep(min(max(found.ttl_s, LEAST_TTL_S), LONGEST_TTL_S))
            else:
                status.failed(f"{self._host} has no records now; asked {empty} of {_BELIEVED} times")
                await _sleep(LEAST_TTL_S)

    async def _look_up(self, resolver: dns.asyncresolver.Resolver) -> _Found:
        if self._port is not None:
            return await self._with_port(resolver, self._host, self._port)
        records, ttl_s = await _ask(resolver, self._host, dns.rdatatype.SRV)
        # Port 0 is none, as in the record that says "no such service" (RFC 2782).
        hosts = sorted({(str(record.target).rstrip("."), int(record.port)) for record in records if record.port})
        names = {host for host, _ in hosts}
        self._had = {(host, kind) for host, kind in self._had if host in names}
        each = await asyncio.gather(*(self._with_port(resolver, host, port) for host, port in hosts))
        addresses = dict.fromkeys(address for found in each for address in found.addresses)
        return _Found(tuple(addresses), min([ttl_s, *(found.ttl_s for found in each)]))

    async def _with_port(self, resolver: dns.asyncresolver.Resolver, host: str, port: int) -> _Found:
        """Some servers fail every question for a family that they have no addresses of: then the other's count."""
        asked = await asyncio.gather(*(_ask(resolver, host, kind) for kind in _ADDRESSES), return_exceptions=True)
        ips: list[str] = []
        ttl_s, failure = LONGEST_TTL_S, None
        for kind, answer in zip(_ADDRESSES, asked, strict=True):
            if isinstance(answer, BaseException):
                if (host, kind) in self._had or not isinstance(answer, UnusableError):
                    raise answer
                failure = answer
            elif answer[0]:
                self._had.add((host, kind))
                ips += sorted(str(record.address) for record in answer[0])
                ttl_s = min(ttl_s, answer[1])
        if not ips:
            if failure is not None:
                raise failure
            ips, ttl_s = await _of_this_machine(host), _LOCAL_TTL_S
        return _Found(tuple(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in ips), ttl_s)


def _resolver(servers: Sequence[str]) -> dns.asyncresolver.Resolver:
    if not servers:
        try:
            resolver = dns.asyncresolver.Resolver()
        except dns.resolver.NoResolverConfiguration:
            raise UnusableError("this machine names no DNS server; name some under discovery.dns_servers") from None
    else:
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.nameservers = [dns.nameserver.Do53Nameserver(*host_and_port(server)) for server in servers]
    resolver.lifetime = _LOOKUP_S
    return resolver


async def _ask(
    resolver: dns.asyncresolver.Resolver, name: str, kind: dns.rdatatype.RdataType
) -> tuple[list[Any], float]:
    """Records and for how long they hold; none where the name or such records do not exist. Raises UnusableError."""
    try:
        answer = await resolver.resolve(name, kind, search=True, raise_on_no_answer=False)
    except dns.resolver.NXDOMAIN:
        return [], LEAST_TTL_S
    except (dns.exception.DNSException, OSError) as error:
        raise UnusableError(f"{name} cannot be looked up: {error}") from None
    return (list(answer.rrset), float(answer.rrset.ttl)) if answer.rrset is not None else ([], LEAST_TTL_S)


async def _of_this_machine(host: str) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return sorted({str(each[4][0]) for each in found})


def _at(like: DiscoveredEndpoint, address: str) -> DiscoveredEndpoint:
    endpoint: DiscoveredEndpoint = msgspec.structs.replace(like, address=address, draining=False)
    return endpoint


async def _sleep(seconds: float) -> None:
    await asyncio.sleep(seconds * random.uniform(0.9, 1.1))
