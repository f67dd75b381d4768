"""DNS names as sources: what their records list, and what a server that fails changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import dns.rcode
import pytest

from fairlead.discovery import DiscoveredEndpoint, SourceStatus
from fairlead.discovery import dns as source
from fairlead.discovery.dns import DnsSource, Parts
from tests.discovery.dns_server import DnsServer
from tests.waiting import WITHIN_S, until

NAME = "engines.example"


class Following:
    """The sets that a source yields, as they come."""

    def __init__(self, of: DnsSource) -> None:
        self.status = SourceStatus(of.name, asyncio.get_running_loop().time)
        self._sets = of.sets(self.status)

    async def next(self) -> list[str]:
        async with asyncio.timeout(WITHIN_S):
            endpoints = await anext(self._sets)
        self.status.endpoints = endpoints
        self.status.confirmed()
        return [each.address for each in endpoints]


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DnsServer]:
    monkeypatch.setattr(source, "LEAST_TTL_S", 0.02)
    made = DnsServer()
    await made.start()
    yield made
    made.stop()


def follow(server: DnsServer, name: str = NAME, port: int | None = 8000, **like: Any) -> Following:
    return Following(DnsSource(name, port, DiscoveredEndpoint("", **like), [server.address]))


async def test_each_address_is_an_engine_at_the_port_in_an_order_that_servers_do_not_change(server: DnsServer) -> None:
    server.set(NAME, A=["10.0.0.2", "10.0.0.1"], AAAA=["2001:db8::1"])
    engines = follow(server, models=("llama",), region="east")
    expected = ["10.0.0.1:8000", "10.0.0.2:8000", "[2001:db8::1]:8000"]
    assert await engines.next() == expected
    assert engines.status.endpoints is not None
    assert engines.status.endpoints[0] == DiscoveredEndpoint("10.0.0.1:8000", models=("llama",), region="east")
    server.set(NAME, A=["10.0.0.1", "10.0.0.2"], AAAA=["2001:db8::1"])
    assert await engines.next() == expected


async def test_srv_records_name_hosts_and_ports(server: DnsServer) -> None:
    server.set("_http._tcp.example", SRV=["0 0 8001 b.example.", "0 0 8000 a.example."])
    server.set("a.example", A=["10.0.0.1"])
    server.set("b.example", A=["10.0.0.2"])
    assert await follow(server, "_http._tcp.example", None).next() == ["10.0.0.1:8000", "10.0.0.2:8001"]


async def test_srv_records_without_a_port_name_no_engine(server: DnsServer) -> None:
    server.set("_http._tcp.example", SRV=["0 0 0 a.example.", "0 0 8000 a.example."])
    server.set("a.example", A=["10.0.0.1"])
    assert await follow(server, "_http._tcp.example", None).next() == ["10.0.0.1:8000"]


async def test_a_change_comes_when_the_time_to_live_is_over_and_no_sooner(server: DnsServer) -> None:
    server.ttl_s = 1
    server.set(NAME, A=["10.0.0.1"])
    engines = follow(server)
    await engines.next()
    asked = server.asked[NAME + "."]
    server.set(NAME, A=["10.0.0.2"])
    began_s = asyncio.get_running_loop().time()
    assert await engines.next() == ["10.0.0.2:8000"]
    assert asyncio.get_running_loop().time() - began_s >= 0.8
    assert server.asked[NAME + "."] == 2 * asked


@contextmanager
def failing(server: DnsServer) -> Iterator[None]:
    server.rcode = dns.rcode.SERVFAIL
    yield
    server.rcode = dns.rcode.NOERROR


async def test_while_the_server_fails_the_last_set_stays(server: DnsServer) -> None:
    server.set(NAME, A=["10.0.0.1"])
    engines = follow(server)
    await engines.next()
    with failing(server):
        coming = asyncio.ensure_future(engines.next())
        await until(lambda: engines.status.failures)
        assert "cannot be looked up" in engines.status.error
        server.set(NAME, A=["10.0.0.2"])
        assert not coming.done()
    assert await coming == ["10.0.0.2:8000"]


ALL = [f"10.0.0.{number}" for number in range(1, 9)]


async def test_answers_that_name_some_of_the_engines_each_time_list_all_that_were_named_lately(
    server: DnsServer,
) -> None:
    """Consul answers with three at random, Route 53 and Cloud Map with eight."""
    rng, engines, sizes = Random(1), follow(server), []
    for _ in range(100):
        server.set(NAME, A=rng.sample(ALL, 3))
        sizes.append(len(await engines.next()))
    assert sizes[0] == 3
    assert set(sizes[20:]) == {len(ALL)}
    gone = ALL[0]
    for _ in range(source._KEPT_ANSWERS + 1):
        server.set(NAME, A=rng.sample(ALL[1:], 3))
        found = await engines.next()
    assert found == [f"{ip}:8000" for ip in ALL if ip != gone]


async def test_an_engine_that_is_back_after_a_while_does_not_keep_those_that_are_gone(server: DnsServer) -> None:
    engines = follow(server)
    for listed in (["10.0.0.1", "10.0.0.2"], ["10.0.0.2"], ["10.0.0.1", "10.0.0.2"], ["10.0.0.1"]):
        server.set(NAME, A=listed)
        assert await engines.next() == [f"{ip}:8000" for ip in listed]


def test_what_answers_have_named_is_bounded() -> None:
    parts = Parts()
    for number in range(50):
        found = parts.whole(
            [f"10.{number}.{i // 256}.{i % 256}:1" for i in range(1000)] + ["10.0.0.1:1"] * (number % 2)
        )
    assert len(parts._missed) <= source._MOST_KEPT
    assert found[0] == "10.0.0.1:1"


async def test_more_addresses_than_a_datagram_holds_are_all_found(server: DnsServer) -> None:
    server.set(NAME, A=[f"10.0.0.{number}" for number in range(1, 201)])
    engines = follow(server)
    assert len(await engines.next()) == 200


@pytest.mark.parametrize("rcode", [dns.rcode.SERVFAIL, dns.rcode.REFUSED, dns.rcode.NOTIMP])
async def test_a_server_that_fails_for_the_family_that_it_does_not_have_is_no_trouble(
    server: DnsServer, rcode: dns.rcode.Rcode
) -> None:
    server.set(NAME, A=["10.0.0.1"])
    server.rcode, server.failing = rcode, {"AAAA"}
    engines = follow(server)
    assert await engines.next() == ["10.0.0.1:8000"]


async def test_addresses_of_a_family_stay_while_the_server_fails_for_it(server: DnsServer) -> None:
    server.set(NAME, A=["10.0.0.1"], AAAA=["fd00::1"])
    engines = follow(server)
    assert await engines.next() == ["10.0.0.1:8000", "[fd00::1]:8000"]
    server.rcode, server.failing = dns.rcode.SERVFAIL, {"AAAA"}
    coming = asyncio.ensure_future(engines.next())
    await until(lambda: engines.status.failures)
    server.set(NAME, A=["10.0.0.2"], AAAA=["fd00::2"])
    server.rcode = dns.rcode.NOERROR
    assert await coming == ["10.0.0.2:8000", "[fd00::2]:8000"]


async def test_that_there_is_no_engine_left_is_believed_only_when_it_is_said_again(server: DnsServer) -> None:
    server.set(NAME, A=["10.0.0.1"])
    engines = follow(server)
    await engines.next()
    server.set(NAME)
    assert await engines.next() == []
    assert engines.status.failures == 2
    assert "has no records now" not in engines.status.error


async def test_a_name_that_never_had_records_is_an_empty_set(server: DnsServer) -> None:
    assert await follow(server).next() == []


async def test_names_of_this_machines_own_files_count(server: DnsServer) -> None:
    assert "127.0.0.1:8000" in await follow(server, "localhost").next()
