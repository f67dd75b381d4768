"""A pool that changes a thousand times: what is kept is of the engines that are there, and of no others."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import AsyncIterator
from types import BuiltinFunctionType, CoroutineType, FrameType, FunctionType, ModuleType
from typing import Final

import msgspec
import pytest
from envoy_data_plane.envoy.service.discovery import v3 as xds
from prometheus_client.parser import text_string_to_metric_families

from fairlead.access import Access
from fairlead.admin.metrics import FairleadCollector, render
from fairlead.api.usage import Usage
from fairlead.config import load
from fairlead.core.facts import RequestFacts, session_key
from fairlead.core.in_flight import InFlight
from fairlead.core.policy import Ended
from fairlead.core.reported import EngineIdentity, EngineReport
from fairlead.discovery import DiscoveredEndpoint, SourceStatus
from fairlead.engines import introduction
from fairlead.engines.introduction import FoundEngine
from fairlead.engines.watch import Watch
from fairlead.extproc.recorder import GONE, KEPT_DECISIONS
from fairlead.gateway.endpoint_discovery import TYPE_URL
from fairlead.gateway.guard import model_cluster
from fairlead.gateway.parts import ENGINES_CLUSTER
from fairlead.serving.build import build
from fairlead.serving.in_force import InForce
from tests.serving.world import ConfigFile
from tests.waiting import WITHIN_S

ENGINES: Final = 4
REQUESTS: Final = 4  # after each change
CHANGES: Final = 1000
_NOT_DATA = (type, ModuleType, FunctionType, BuiltinFunctionType, CoroutineType, FrameType, asyncio.Future)


def kept_bytes(*roots: object) -> int:
    """All that can be reached from these, without code, and without tasks that run."""
    seen, total, waiting = {id(root) for root in roots}, 0, list(roots)
    while waiting:
        each = waiting.pop()
        total += sys.getsizeof(each)
        inside = gc.get_referents(each)
        if isinstance(each, msgspec.Struct):  # those without garbage collection tell nobody what they hold
            inside += [getattr(each, name) for name in each.__struct_fields__]
        for one in inside:
            if id(one) not in seen and not isinstance(one, (*_NOT_DATA, asyncio.AbstractEventLoop)):
                seen.add(id(one))
                waiting.append(one)
    return total


class Changing:
    """A sidecar without its edges: four engines at a time, of which the oldest leaves as a new one comes."""

    def __init__(self, file: ConfigFile) -> None:
        config = load(file.write(pool={}, discovery={"file": "engines.yaml"}))
        self.services = build(config, file.folder)
        self.in_force = InForce(self.services, file.folder)
        self.services.config = config
        self.status = SourceStatus("file", self.services.clock_s)
        self.services.discovery.statuses = (self.status,)
        self.pushed: list[xds.DiscoveryResponse] = []
        self.envoy = self.services.envoys.subscriber(lambda sent: self.pushed.append(xds.DiscoveryResponse.parse(sent)))
        self.envoy.message(bytes(xds.DiscoveryRequest(type_url=TYPE_URL, resource_names=self.clusters)))
        self.changes = self.requests = 0
        self.gone: set[str] = set()

    clusters: Final = [ENGINES_CLUSTER, model_cluster("llama")]

    @property
    def addresses(self) -> list[str]:
        numbers = range(self.changes, self.changes + ENGINES)
        return [f"10.{number // 200 // 200}.{number // 200 % 200}.{number % 200 + 1}:8000" for number in numbers]

    async def change(self) -> None:
        """The next set, and requests of every kind that leave something behind."""
        self.gone.add(self.addresses[0])
        self.changes += 1
        self.status.endpoints = tuple(DiscoveredEndpoint(address) for address in self.addresses)
        pool, self.pushed = self.services.router, self.pushed[-1:]
        async with asyncio.timeout(WITHIN_S):
            while set(pool.pool.by_address) != set(self.addresses):
                await self.in_force._change_pool()
                await asyncio.sleep(0)
        self.acks()
        for endpoint in pool.pool.endpoints:
            endpoint.identified(EngineIdentity("0.32.0", ("llama", "sql"), adapters=("sql",)))
            endpoint.reported(EngineReport(running_requests=0, adapter_slots=2, stale=False))
        pool.pool = pool.pool.renewed()
        for _ in range(REQUESTS):
            self.serve()
        if self.changes % 50 == 0:
            self.services.learner.settle(pool.pool)
        pool.trim(self.services.clock_s())
        self.services.kv_following.restarted(pool.pool.endpoints)

    def acks(self) -> None:
        last = self.pushed[-1]
        answer = xds.DiscoveryRequest(
            type_url=TYPE_URL, resource_names=self.clusters, version_info=last.version_info, response_nonce=last.nonce
        )
        self.envoy.message(bytes(answer))

    def serve(self) -> None:
        services, number = self.services, self.requests
        self.requests += 1
        now_s = services.clock_s()
        chain = tuple(range(10 * number, 10 * number + 4))
        facts = RequestFacts(
            "llama", 500, None, "en", 0, session=session_key(b"%d" % number), prefix=chain, block_tokens=128.0
        )
        if number % 2:
            facts = facts.called("sql", is_adapter=True)
        in_flight = services.router.admit(facts, now_s=now_s)
        assert isinstance(in_flight, InFlight)
        in_flight.sent(facts, now_s)
        services.recorder.decided(facts, in_flight.decision, b"%d" % number, 0.001)
        in_flight.served(in_flight.address, 200, now_s + 0.1, in_one_piece=False)
        in_flight.first_token(now_s + 0.1)
        seen = in_flight.observation(Usage(500, 100, 50), now_s + 1.0, streamed=True)
        services.learner.observe(seen, services.router.pool)
        services.recorder.observed(seen)
        services.budget.open(in_flight.address, now_s)
        outcome = in_flight.ended(now_s + 1.0, seen)
        assert outcome is not None
        ended = Ended(facts, in_flight.decision, outcome, in_flight.address, b"%d" % number, now_s, now_s + 1.0)
        services.recorder.ended("llama", ended)

    def kept(self) -> int:
        gc.collect()
        return kept_bytes(self.services, self.in_force, self.envoy)


@pytest.fixture
async def changing(file: ConfigFile, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Changing]:
    async def listed(address: str, _: Access) -> tuple[FoundEngine, str]:
        return FoundEngine(address, "llama", "vllm", 4096), ""

    async def watched(_: Watch) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(introduction, "_listed", listed)
    monkeypatch.setattr(Watch, "run", watched)
    made = Changing(file)
    await made.services.observers.start()
    yield made
    with contextlib.suppress(asyncio.CancelledError):
        await made.in_force._membership.stop()
        await made.services.observers.stop()


async def test_memory_is_flat_and_nothing_of_a_gone_engine_is_left(changing: Changing) -> None:
    for _ in range(KEPT_DECISIONS // REQUESTS + 50):  # the last decisions and endings are kept: these are full now
        await changing.change()
    before, pushed = changing.kept(), len(bytes(changing.pushed[-1]))
    for _ in range(CHANGES):
        await changing.change()
    assert changing.kept() <= 1.02 * before

    services, here = changing.services, set(changing.addresses)
    router = services.router
    assert {address for address, _ in services.learner.engines} <= here
    assert set(router.sessions.by_endpoint()) <= here
    assert set(router.retentions) <= here
    assert set(services.observers.counts) <= here
    assert set(services.kv_following._generations) <= here
    assert set(services.recorder.by_endpoint) <= here
    assert not any(router.index.blocks(address) for address in changing.gone)
    labels = {
        sample.labels["endpoint"]
        for family in text_string_to_metric_families(render(FairleadCollector(services)).decode())
        for sample in family.samples
        if "endpoint" in sample.labels
    }
    assert labels <= here | {GONE, ""}
    statistics = services.envoys.statistics()
    assert (statistics.streams, statistics.acks) == (1, changing.changes)
    assert len(bytes(changing.pushed[-1])) <= pushed + 16  # its version and nonce have a digit more
