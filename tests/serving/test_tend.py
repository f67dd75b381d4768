"""Background upkeep: it does its work, survives internal errors, and logs them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fairlead.config import parse
from fairlead.core.load import Load
from fairlead.core.reported import EngineIdentity, EngineReport
from fairlead.extproc.services import Services
from fairlead.serving import tend
from fairlead.serving.build import build
from fairlead.serving.in_force import InForce
from tests.extproc.world import Conversation, as_response, chat, request_body, request_headers
from tests.waiting import until


@pytest.fixture
async def services() -> Services:
    return await made_of("pool: {endpoints: [{address: '127.0.0.1:1', model: m}]}")


async def made_of(text: str) -> Services:
    config = parse(text)
    made = build(config, Path())
    await made.cascades.escalation.open()
    await InForce(made, Path()).apply(config)
    await made.cascades.escalation.close()
    return made


async def test_upkeep_goes_on_after_a_fault_of_ours_which_is_counted(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tend, "_TEND_S", 0.001)
    real, faults, capacities = services.router.sessions.expire, [RuntimeError("on purpose")], []

    def expire(now_s: float) -> None:
        if faults:
            raise faults.pop()
        real(now_s)

    monkeypatch.setattr(services.router.sessions, "expire", expire)
    monkeypatch.setattr(services.router.index, "set_capacity_tokens", lambda *args: capacities.append(args))
    services.router.pool.endpoints[0].report = EngineReport(kv_capacity_tokens=12_800)
    upkeep = asyncio.create_task(tend.tend(services))
    await until(lambda: bool(capacities))
    upkeep.cancel()
    await asyncio.wait([upkeep])
    assert services.recorder.background_failures == 1
    assert "on purpose" in services.recorder.last_background_failure
    assert capacities[0][0] == "127.0.0.1:1"


@pytest.mark.parametrize(
    ("report", "identity"),
    [
        (EngineReport(kv_capacity_tokens=12_800, caches_prefixes=False), EngineIdentity()),
        (EngineReport(kv_capacity_tokens=12_800), EngineIdentity(caches_prefixes=False)),
        (EngineReport(), EngineIdentity(caches_prefixes=False)),
    ],
)
async def test_nothing_is_expected_to_be_cached_at_an_engine_that_says_it_caches_no_prefixes(
    services: Services, monkeypatch: pytest.MonkeyPatch, report: EngineReport, identity: EngineIdentity
) -> None:
    """Its usage leaves out what was cached, as that of any vLLM does where nothing was."""
    monkeypatch.setattr(tend, "_TEND_S", 0.001)
    index, (endpoint,) = services.router.index, services.router.pool.endpoints
    index.insert((1, 2, 3), endpoint.address, services.clock_s())
    endpoint.report = report
    endpoint.identified(identity)
    upkeep = asyncio.create_task(tend.tend(services))
    await until(lambda: index.blocks(endpoint.address) == 0)
    upkeep.cancel()
    await asyncio.wait([upkeep])
    index.insert((4, 5, 6), endpoint.address, services.clock_s())
    assert index.match((4, 5, 6), services.clock_s()) == {}


async def test_upkeep_notices_that_others_route_to_the_same_engines(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tend, "_TEND_S", 0.001)
    services.router.pool.endpoints[0].strangers = Load(5)
    upkeep = asyncio.create_task(tend.tend(services))
    await until(lambda: services.router.others.present)
    upkeep.cancel()
    await asyncio.wait([upkeep])


async def test_who_waits_for_an_adapter_that_is_unloaded_is_told_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tend, "_TEND_S", 0.001)
    pool = "pool: {endpoints: [{address: '127.0.0.1:1', model: m}], models: {m: {prefill_ms_per_token: 1}}}"
    services = await made_of(f"{pool}\nadmission: {{begin_within_ms: 1000}}")
    (endpoint,) = services.router.pool.endpoints
    endpoint.identified(EngineIdentity("1", ("m", "sql"), adapters=("sql",)))
    services.router.pool = services.router.pool.renewed()
    endpoint.take(Load(1, 20_000, 20_000))  # for longer than anybody waits
    waiting, other = Conversation(services), Conversation(services)
    waiting.say(request_headers(), request_body(chat("sql")))
    other.say(request_headers(), request_body(chat("m")))
    assert services.admission.queue.requests == 2
    endpoint.identified(EngineIdentity("1", ("m",)))
    upkeep = asyncio.create_task(tend.tend(services))
    held = waiting.stream.held
    assert held is not None
    (reply,) = await asyncio.wait_for(held, 60)
    upkeep.cancel()
    await asyncio.wait([upkeep])
    assert as_response(reply).immediate_response.status.code == 404
    assert services.admission.queue.requests == 1
    other.stream.close()
    await services.observers.stop()


async def test_each_fault_is_reported_once_with_its_last_cause(services: Services) -> None:
    faults = tend.FaultLog(services)
    services.recorder.stream_failed("first")
    services.recorder.stream_failed("second")
    services.router.policy_failures, services.router.last_policy_failure = 1, "policy"
    with capture_logs() as logged:
        faults.log_new()
        faults.log_new()
    assert [(entry["stage"], entry["failures"], entry["last_cause"]) for entry in logged] == [
        ("policy", 1, "policy"),
        ("stream", 2, "second"),
    ]


async def test_faults_of_the_last_seconds_are_reported_at_the_end(services: Services) -> None:
    with capture_logs() as logged:
        telling = asyncio.create_task(tend.report_faults(services))
        await asyncio.sleep(0)
        services.recorder.background_failed("late")
        telling.cancel()
        await asyncio.wait([telling])
    assert [entry["last_cause"] for entry in logged] == ["late"]


async def test_requests_have_their_turn_between_two_steps_of_learning(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tend, "_TEND_S", 0.001)
    order: list[str] = []

    def settling(_: object) -> Iterator[None]:
        for _step in range(3):
            order.append("step")
            asyncio.get_running_loop().call_soon(order.append, "request")
            yield

    monkeypatch.setattr(services.learner, "settling", settling)
    upkeep = asyncio.create_task(tend.tend(services))
    await until(lambda: len(order) >= 6)
    upkeep.cancel()
    await asyncio.wait([upkeep])
    assert order[:6] == ["step", "request"] * 3
