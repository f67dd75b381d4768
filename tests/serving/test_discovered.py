"""A sidecar whose pool is discovered: engines come, drain and go while it serves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
import yaml
from aiohttp import web
from structlog.testing import capture_logs

from fairlead.core.facts import RequestFacts
from fairlead.core.in_flight import InFlight
from fairlead.core.lengths import BUCKETS
from fairlead.core.policy import Ended, Outcome, Refusal
from fairlead.engines import watch
from fairlead.errors import UserError
from fairlead.extproc.models import models_answer
from fairlead.serving import in_force, pool
from fairlead.serving.sidecar import Sidecar
from tests.core.test_learning import seen
from tests.serving.world import ConfigFile
from tests.waiting import until


class Lister:
    """An engine as far as asking it what it serves goes."""

    def __init__(self, *models: str) -> None:
        self.cards: list[dict[str, Any]] = [{"id": name, "owned_by": "vllm", "max_model_len": 4096} for name in models]
        self.status = 200
        self.address = ""
        self.asked = 0  # for its models
        self.key = ""  # without which it answers nobody

    async def start(self, stack: AsyncExitStack) -> None:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.address = f"127.0.0.1:{runner.addresses[0][1]}"

    async def _models(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return web.json_response({"data": self.cards}, status=self.status)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()


class World:
    """A sidecar over what `lists` wrote."""

    def __init__(self, file: ConfigFile, stack: AsyncExitStack) -> None:
        self.file = file
        self.stack = stack
        self.sidecar: Sidecar

    async def engine(self, *models: str) -> Lister:
        made = Lister(*models)
        await made.start(self.stack)
        return made

    def lists(self, *entries: str | dict[str, Any]) -> None:
        new = self.file.folder / "engines.new"
        new.write_text(yaml.safe_dump(list(entries)))
        new.replace(self.file.folder / "engines.yaml")

    async def start(self, **sections: Any) -> None:
        path = self.file.write(pool={}, discovery={"file": "engines.yaml"}, **sections)
        self.sidecar = await self.stack.enter_async_context(Sidecar(path))

    async def start_with_one(self) -> Lister:
        """Its engine, which serves llama and is looked at ten times a second."""
        engine = await self.engine("llama")
        self.lists(engine.address)
        await self.start(observe={"health_interval_ms": 100})
        return engine

    def pool(self) -> dict[str, str]:
        return {e.address: e.model for e in self.sidecar.services.router.pool.endpoints}

    def admit(self, model: str, session: bytes | None = None) -> InFlight | Refusal:
        facts = RequestFacts(model, 100, None, "en", 0, session=session, prefix=(1, 2, 3), block_tokens=30.0)
        return self.sidecar.services.router.admit(facts, now_s=self.sidecar.services.clock_s())

    def chosen(self, model: str = "llama") -> set[str]:
        """Where requests for `model` go now; nowhere if it is unknown."""
        addresses = set()
        for _ in range(8):
            admitted = self.admit(model)
            if isinstance(admitted, InFlight):
                addresses.add(admitted.address)
                admitted.withdraw(self.sidecar.services.clock_s())
        return addresses


@pytest.fixture
async def world(file: ConfigFile) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield World(file, stack)


async def test_it_is_ready_when_the_first_set_is_known_even_if_that_is_empty(world: World) -> None:
    await world.start()
    services = world.sidecar.services
    await until(lambda: services.discovery.statuses[0].error)
    assert not services.is_ready
    world.lists()
    await until(lambda: services.is_ready)


async def test_an_empty_pool_refuses_for_a_while_and_knows_no_unknown_models(world: World) -> None:
    world.lists()
    await world.start()
    refused = world.admit("any")
    assert isinstance(refused, Refusal)
    assert refused.reason == "no_endpoint"


async def test_an_engine_is_asked_what_it_serves_before_it_gets_traffic(world: World) -> None:
    engine = await world.engine("llama")
    engine.status = 503
    world.lists(engine.address)
    await world.start()
    await until(lambda: world.sidecar.services.discovery.is_synced)
    assert world.pool() == {}
    engine.status = 200
    await until(lambda: world.pool() == {engine.address: "llama"})
    (endpoint,) = world.sidecar.services.router.pool.endpoints
    assert (endpoint.spec.engine, endpoint.max_model_len) == ("vllm", 4096)


async def test_an_endpoint_that_drains_gets_nothing_new_and_one_that_is_back_does(world: World) -> None:
    one, other = await world.engine("llama"), await world.engine("llama")
    world.lists(one.address, other.address)
    await world.start()
    await until(lambda: len(world.pool()) == 2)
    world.lists({"address": one.address, "draining": True}, other.address)
    await until(lambda: world.chosen() == {other.address})
    world.lists(one.address, other.address)
    await until(lambda: world.chosen() == {one.address, other.address})


async def test_an_engine_that_joins_others_at_work_warms_in_and_those_of_the_start_do_not(world: World) -> None:
    first, second, third, other = [await world.engine("llama") for _ in range(3)] + [await world.engine("mistral")]
    world.lists(first.address, second.address)
    await world.start()
    await until(lambda: len(world.pool()) == 2)
    served = world.admit("llama")
    assert isinstance(served, InFlight)
    served.sent(served.request, 0.0)
    served.served(served.address, 200, 0.0, in_one_piece=True)
    served.ended(0.0)
    world.lists(*(each.address for each in (first, second, third, other)))
    await until(lambda: len(world.pool()) == 4)
    by_address = world.sidecar.services.router.pool.by_address
    assert [by_address[each.address].warm_in.is_over for each in (first, second, third, other)] == [
        True, True, False, True,
    ]  # fmt: skip


async def test_one_that_is_gone_is_forgotten_everywhere(world: World) -> None:
    engine, other = await world.engine("llama"), await world.engine("llama")
    world.lists(engine.address)
    await world.start()
    await until(world.pool)
    services = world.sidecar.services
    running = world.admit("llama", session=b"s")
    assert isinstance(running, InFlight)
    running.sent(running.request, services.clock_s())
    ended = Ended(running.request, running.decision, Outcome(200, 100.0), engine.address, b"id", 0.0, 0.1)
    services.recorder.ended("llama", ended)
    assert services.router.index.blocks(engine.address)
    world.lists(other.address)
    await until(lambda: world.pool() == {other.address: "llama"})
    assert not services.router.index.blocks(engine.address)
    assert engine.address not in services.router.sessions.by_endpoint()
    assert list(services.recorder.requests) == [("llama", "llama", "gone", 200)]
    running.served(engine.address, 200, services.clock_s(), in_one_piece=True)
    running.ended(services.clock_s())
    assert not services.router.index.blocks(engine.address)
    assert engine.address not in services.observers.counts


async def test_a_broken_file_leaves_the_pool_as_it_was(world: World) -> None:
    engine = await world.engine("llama")
    world.lists(engine.address)
    await world.start()
    await until(world.pool)
    world.lists("no address")
    services = world.sidecar.services
    await until(lambda: services.discovery.statuses[0].error)
    assert world.pool() == {engine.address: "llama"}
    assert services.is_ready


async def test_engines_come_and_go_while_a_capability_file_is_gone_as_it_was_read_before(world: World) -> None:
    rows = {"other": [0.5] * len(BUCKETS)}
    file = world.file.folder / "sql.json"
    file.write_bytes(msgspec.json.encode({"task": "t", "buckets": BUCKETS, "models": {"sql": rows}}))
    one, other = await world.engine("llama"), await world.engine("llama")
    world.lists(one.address)
    models = {"sql": {"adapter_of": "llama", "capability": "sql.json"}}
    path = world.file.write(pool={"models": models}, discovery={"file": "engines.yaml"})
    world.sidecar = await world.stack.enter_async_context(Sidecar(path))
    await until(world.pool)
    file.unlink()
    world.lists(other.address)
    await until(lambda: set(world.pool()) == {other.address})
    (endpoint,) = world.sidecar.services.router.pool.endpoints
    assert endpoint.spec.capability_of("sql").success_probability("en", 0) == 0.5


async def test_a_reload_keeps_what_was_discovered(world: World) -> None:
    engine = await world.engine("llama")
    world.lists(engine.address)
    await world.start()
    await until(world.pool)
    world.file.write(pool={}, discovery={"file": "engines.yaml"}, policy={"name": "least_load"})
    await world.sidecar.reloading.reload()
    assert world.sidecar.services.config.policy.name == "least_load"
    assert world.pool() == {engine.address: "llama"}


async def test_a_drain_of_before_a_restart_holds_for_who_is_listed_and_not_for_who_is_gone(world: World) -> None:
    here, starts, joins = [await world.engine("llama") for _ in range(3)]
    starts.status = 503
    world.lists(here.address, starts.address)
    await world.start()
    await until(world.pool)
    draining = world.sidecar.services.router.planner.draining
    draining |= {here.address, starts.address, "127.0.0.9:1"}  # as a file says
    world.lists(here.address, starts.address, joins.address)
    await until(lambda: joins.address in world.pool())
    await until(lambda: draining == {here.address, starts.address})


async def test_a_key_that_a_reload_brings_is_shown_to_engines_that_have_not_answered_yet(world: World) -> None:
    engine = await world.engine("llama")
    engine.key = "secret"
    world.lists(engine.address)
    await world.start()
    await until(lambda: engine.asked)
    (world.file.folder / "key").write_text("secret")
    world.file.write(pool={"api_key_file": str(world.file.folder / "key")}, discovery={"file": "engines.yaml"})
    await world.sidecar.reloading.reload()
    await until(lambda: world.pool() == {engine.address: "llama"})


async def test_what_was_learned_before_a_restart_counts_once_its_engines_are_found(world: World) -> None:
    engine = await world.engine("llama")
    path = world.file.write(pool={}, discovery={"file": "engines.yaml"}, observe={"state": "learned.json"})

    async def learned_ms(answers: int) -> float:
        world.lists()
        async with Sidecar(path) as world.sidecar:
            services = world.sidecar.services
            await until(lambda: services.is_ready)
            world.lists(engine.address)
            await until(world.pool)
            for _ in range(answers):
                observed = seen(address=engine.address, model="llama")
                services.learner.observe(observed, services.router.pool)
                services.recorder.observed(observed)
            return services.router.pool.endpoints[0].speed.prefill_ms_per_token

    assert await learned_ms(20) == 0.1
    kept = (world.file.folder / "learned.json").read_bytes()
    world.lists()
    async with Sidecar(path) as world.sidecar:  # that ends before it has found them
        world.sidecar.services.router.planner.draining.add(engine.address)
    assert (world.file.folder / "learned.json").read_bytes() == kept
    assert await learned_ms(0) == pytest.approx(0.2, rel=0.01)


async def test_adapters_are_served_by_the_engines_that_list_them_as_they_come_and_go(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_MODELS_S", 0.1)
    plain, tuned = await world.engine("llama"), await world.engine("llama")
    tuned.cards.append({"id": "sql", "parent": "llama"})
    world.lists(plain.address, tuned.address)
    await world.start(observe={"health_interval_ms": 100})
    await until(lambda: len(world.pool()) == 2)
    await until(lambda: world.chosen("sql") == {tuned.address})
    admitted = world.admit("sql")
    assert isinstance(admitted, InFlight)
    assert admitted.decision.model == "sql", "the body keeps the adapter's name"
    admitted.withdraw(0.0)
    listing = models_answer("/v1/models/sql", world.sidecar.services.router.pool)
    assert listing is not None
    assert msgspec.json.decode(listing.body)["parent"] == "llama"
    plain.cards.append({"id": "sql", "parent": "llama"})
    await until(lambda: world.chosen("sql") == {plain.address, tuned.address})
    del plain.cards[1], tuned.cards[1]
    await until(lambda: world.chosen("sql") == set())
    assert world.chosen("llama") == {plain.address, tuned.address}


async def test_an_engine_that_is_back_at_its_address_with_another_model_gets_nothing_for_the_old_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_MODELS_S", 0.1)
    stays, changes = await world.engine("llama"), await world.engine("llama")
    world.lists(stays.address, changes.address)
    await world.start(observe={"health_interval_ms": 100})
    await until(lambda: world.chosen() == {stays.address, changes.address})
    changes.cards[0]["id"] = "mistral"
    await until(lambda: world.pool() == {stays.address: "llama", changes.address: "mistral"})
    assert world.chosen("llama") == {stays.address}
    assert world.chosen("mistral") == {changes.address}


async def test_an_engine_of_another_kind_that_is_back_at_an_address_is_asked_in_its_own_way(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_MODELS_S", 0.1)
    engine = await world.start_with_one()
    router = world.sidecar.services.router
    await until(lambda: [e.spec.engine for e in router.pool.endpoints] == ["vllm"])
    engine.cards[0]["owned_by"] = "sglang"
    await until(lambda: [e.spec.engine for e in router.pool.endpoints] == ["sglang"])


async def test_an_engine_that_is_configured_as_another_than_it_is_and_listed_too_is_not_asked_without_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_MODELS_S", 0.1)
    engine = await world.engine("llama")
    world.lists(engine.address)
    configured = {"address": engine.address, "model": "mistral", "engine": "sglang"}
    path = world.file.write(
        pool={"endpoints": [configured]}, discovery={"file": "engines.yaml"}, observe={"health_interval_ms": 100}
    )
    world.sidecar = await world.stack.enter_async_context(Sidecar(path))
    await until(lambda: world.sidecar.services.router.pool.endpoints[0].identity.models)
    engine.asked = 0
    world.sidecar.services.discovery.look_again()
    await asyncio.sleep(1.0)
    assert engine.asked < 20


async def test_an_engine_that_is_back_with_a_longer_context_gets_longer_prompts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_MODELS_S", 0.1)
    engine = await world.start_with_one()
    await until(world.pool)
    (endpoint,) = world.sidecar.services.router.pool.endpoints

    async def counts(length: int) -> None:
        engine.cards[0]["max_model_len"] = length
        await until(lambda: endpoint.max_model_len == length)

    await counts(8192)
    await counts(2048)


async def test_an_address_at_which_fairlead_or_its_gateway_listens_is_no_engine(world: World) -> None:
    engine, gateway = await world.engine("llama"), await world.engine("llama")
    port = gateway.address.rpartition(":")[2]
    world.lists(engine.address, gateway.address)
    with capture_logs() as logs:
        await world.start(gateway={"listen": f"0.0.0.0:{port}"})
        await until(lambda: world.pool() == {engine.address: "llama"})
    assert [line["address"] for line in logs if "in a circle" in line["event"]] == [gateway.address]
    assert world.sidecar.services.discovery.statuses[0].refused == 1


async def test_a_name_that_gets_another_address_is_followed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_force, "_NAMES_S", 0.02)
    where = {"vllm-0:1": "127.0.0.2:1"}

    def look_up(address: str, *_: str) -> str:
        if address not in where:
            raise UserError(f"{address} does not resolve")
        return where[address]

    monkeypatch.setattr(pool, "resolve", look_up)
    path = world.file.write(pool={"endpoints": [{"address": "vllm-0:1", "model": "llama"}]})
    world.sidecar = await world.stack.enter_async_context(Sidecar(path))
    assert world.pool() == {"127.0.0.2:1": "llama"}
    where["vllm-0:1"] = "127.0.0.3:1"
    await until(lambda: world.pool() == {"127.0.0.3:1": "llama"})
    with capture_logs() as logs:
        del where["vllm-0:1"]
        await until(lambda: any("last address stays" in each["event"] for each in logs))
    assert world.pool() == {"127.0.0.3:1": "llama"}


async def test_a_name_of_several_addresses_keeps_its_engine_in_whatever_order_they_come(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_force, "_NAMES_S", 0.02)
    ips, looks = ["127.0.0.2", "127.0.0.3"], 0
    own = socket.getaddrinfo

    def look_up(host: str, port: int, **more: Any) -> Any:
        nonlocal looks
        if host != "vllm":
            return own(host, port, **more)
        looks += 1
        ips.reverse()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ips]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    path = world.file.write(pool={"endpoints": [{"address": "vllm:1", "model": "llama"}]})
    world.sidecar = await world.stack.enter_async_context(Sidecar(path))
    (first,) = world.pool()
    with capture_logs() as logs:
        await until(lambda: looks > 6)
    assert (list(world.pool()), [each for each in logs if "other addresses" in each["event"]]) == ([first], [])


async def test_the_last_engines_of_a_model_stay_until_those_listed_instead_have_served(world: World) -> None:
    old = [await world.engine("llama") for _ in range(3)]
    other, new = await world.engine("other"), await world.engine("llama")
    new.status = 503
    world.lists(*(each.address for each in [*old, other]))
    await world.start()
    await until(lambda: len(world.pool()) == 4)
    router, clock_s = world.sidecar.services.router, world.sidecar.services.clock_s
    for endpoint in router.pool.endpoints:
        endpoint.request_answered(clock_s())
    world.lists(new.address)
    await until(lambda: all(router.pool.by_address[each.address].health.withheld for each in old))
    assert world.chosen() <= {each.address for each in old}
    new.status = 200
    await until(lambda: world.chosen() == {new.address})
    assert set(world.pool()) > {new.address}, "it has not served yet"
    router.pool.by_address[new.address].request_answered(clock_s())
    await until(lambda: set(world.pool()) == {new.address})


async def test_engines_leave_at_once_where_others_of_their_model_serve(world: World) -> None:
    gone, stays, new = [await world.engine("llama") for _ in range(3)]
    new.status = 503
    world.lists(gone.address, stays.address)
    await world.start()
    await until(lambda: len(world.pool()) == 2)
    router = world.sidecar.services.router
    router.pool.by_address[stays.address].request_answered(world.sidecar.services.clock_s())
    world.lists(stays.address, new.address)
    await until(lambda: set(world.pool()) == {stays.address})
