"""One watch on one engine over real HTTP: what it writes on the endpoint."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Literal

import pytest
from structlog.testing import capture_logs

from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.health import HALF, OTHER_MODEL
from fairlead.core.in_flight import InFlight
from fairlead.core.pool import Pool
from fairlead.core.router import Router
from fairlead.core.streak import FIRST_COOL_DOWN_S, REQUEST_FAILURES_TO_EJECT
from fairlead.engines import watch
from fairlead.engines.ask import connect_ms
from fairlead.engines.metrics_text import MOST_BYTES
from fairlead.engines.observer import Observers
from fairlead.engines.watch import Watch, WatchCounts
from fairlead.policies import build_policy
from fairlead.tools.simulate.server import EngineOptions, running_engine
from tests.core.world import make_endpoint
from tests.engines.world import IMPATIENT, QUICK, FakeEngine, watching
from tests.waiting import until


def counts(observers: Observers, endpoint: Endpoint) -> WatchCounts:
    return observers.counts[endpoint.address]


async def test_a_healthy_engine_is_read_identified_and_measured(endpoint: Endpoint) -> None:
    async with watching([endpoint]):
        await until(lambda: endpoint.rtt_ms > 0 and not endpoint.report.stale and endpoint.identity.version)
    assert endpoint.health.healthy
    assert endpoint.generation == 0
    assert endpoint.report.running_requests == 0
    assert endpoint.identity.version == "0.32.0"
    assert endpoint.max_model_len == 4096


async def test_an_engine_that_goes_down_is_ejected_and_comes_back(engine: FakeEngine, endpoint: Endpoint) -> None:
    async with watching([endpoint]) as observers:
        await until(lambda: endpoint.identity.version)
        await engine.stop()
        await until(lambda: not endpoint.health.healthy)
        assert counts(observers, endpoint).probe_failures.keys() <= {"connect", "protocol"}
        await engine.start()
        await until(lambda: endpoint.health.healthy)
    assert (endpoint.health.ejections, endpoint.health.returns) == (1, 1)


async def test_an_engine_that_is_not_there_at_the_start_is_ejected() -> None:
    gone = FakeEngine()
    await gone.start()
    await gone.stop()
    endpoint = make_endpoint(gone.address, "m")
    async with watching([endpoint]):
        await until(lambda: not endpoint.health.healthy)
    assert endpoint.report.stale
    assert endpoint.rtt_ms == 0


async def test_an_engine_whose_health_is_5xx_is_ejected_though_its_metrics_are_fine(
    engine: FakeEngine, endpoint: Endpoint
) -> None:
    engine.health_status = 503
    async with watching([endpoint]) as observers:
        await until(lambda: not endpoint.health.healthy)
        assert counts(observers, endpoint).probe_failures == {"status": counts(observers, endpoint).probes}
        engine.health_status = 200
        await until(lambda: endpoint.health.healthy)


@pytest.mark.parametrize("status", [301, 401, 404, 429])
async def test_an_answer_below_500_is_an_answer(engine: FakeEngine, endpoint: Endpoint, status: int) -> None:
    engine.health_status = status
    async with watching([endpoint]) as observers:
        await until(lambda: counts(observers, endpoint).probes > 3 * QUICK.failures_to_eject)
        assert counts(observers, endpoint).probe_failures == {}
    assert endpoint.health.ejections == 0


async def test_an_engine_that_hangs_is_ejected(engine: FakeEngine, endpoint: Endpoint) -> None:
    async with watching([endpoint], IMPATIENT) as observers:
        await until(lambda: endpoint.identity.version)
        engine.hanging |= {"/health", "/metrics", "/version"}
        await until(lambda: not endpoint.health.healthy)
        assert counts(observers, endpoint).probe_failures.keys() == {"timeout"}
        await until(lambda: endpoint.report.stale)
        engine.hanging.clear()
        await until(lambda: endpoint.health.healthy and not endpoint.report.stale)


async def test_metrics_that_hang_do_not_eject(engine: FakeEngine, endpoint: Endpoint) -> None:
    engine.hanging.add("/metrics")
    async with watching([endpoint], IMPATIENT) as observers:
        await until(lambda: counts(observers, endpoint).scrape_failures.get("timeout", 0) >= QUICK.failures_to_eject)
    assert endpoint.health.ejections == 0
    assert endpoint.report.stale


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (b"\x00\xff garbage", "foreign"),
        (b"", "foreign"),
        (b"tgi_queue_size 4\n", "foreign"),
        (b"vllm:num_requests_running 1\n" + b"x" * MOST_BYTES, "too_large"),
    ],
)
async def test_metrics_that_cannot_be_used_are_counted_and_change_nothing(
    engine: FakeEngine, endpoint: Endpoint, page: bytes, reason: str
) -> None:
    engine.metrics = page
    async with watching([endpoint]) as observers:
        await until(lambda: counts(observers, endpoint).scrape_failures.get(reason, 0) >= 4)
        assert counts(observers, endpoint).faults == 0
    assert endpoint.health.healthy
    assert endpoint.report.running_requests is None


async def test_a_redirect_is_not_followed(engine: FakeEngine, endpoint: Endpoint) -> None:
    engine.metrics_status, engine.headers = 307, {"location": "/elsewhere"}
    async with watching([endpoint]) as observers:
        await until(lambda: counts(observers, endpoint).scrape_failures.get("status", 0) >= 2)
    assert engine.asked["/elsewhere"] == 0


async def test_a_report_becomes_stale_when_metrics_stop_and_fresh_when_they_are_back(
    engine: FakeEngine, endpoint: Endpoint
) -> None:
    async with watching([endpoint]):
        await until(lambda: not endpoint.report.stale)
        engine.metrics_status = 500
        await until(lambda: endpoint.report.stale)
        assert endpoint.report.running_requests == 0  # what was seen last is kept, as what it is
        engine.metrics_status, engine.metrics = 200, b"vllm:num_requests_running 1\n"
        await until(lambda: endpoint.report.running_requests == 1 and not endpoint.report.stale)


async def test_a_page_that_says_work_and_never_moves_becomes_stale(engine: FakeEngine, endpoint: Endpoint) -> None:
    engine.metrics = b"vllm:num_requests_running 1\n"
    async with watching([endpoint]) as observers:
        await until(lambda: endpoint.report.running_requests == 1 and endpoint.report.stale)
        assert counts(observers, endpoint).scrape_failures == {}


async def test_a_new_start_time_is_a_restart_and_the_engine_is_asked_again_what_it_is(
    engine: FakeEngine, endpoint: Endpoint
) -> None:
    engine.metrics = b"vllm:num_requests_running 0\nprocess_start_time_seconds 100\n"
    async with watching([endpoint]) as observers:
        await until(lambda: endpoint.identity.version and endpoint.report.process_start_s == 100)
        engine.version = b'{"version":"0.33.0"}'
        engine.metrics = engine.metrics.replace(b"100", b"200")
        await until(lambda: endpoint.generation == 1 and endpoint.identity.version == "0.33.0")
        assert counts(observers, endpoint).restarts == 1


async def test_several_engines_behind_one_address_are_told_of_once_and_do_not_restart_all_the_time(
    engine: FakeEngine, endpoint: Endpoint
) -> None:
    with capture_logs() as logs:
        async with watching([endpoint]) as observers:
            for number, start_s in enumerate([100, 200] * 4):
                engine.metrics = b"vllm:num_requests_running %d\nprocess_start_time_seconds %d\n" % (number, start_s)
                await until(lambda wanted=number: endpoint.report.running_requests == wanted)  # type: ignore[misc]
            assert (endpoint.generation, counts(observers, endpoint).scrape_failures) == (1, {"several": 6})
    assert [line["endpoint"] for line in logs if "several engines" in line["event"]] == [endpoint.address]


OTHERS = b'{"data":[{"id":"another"}]}'


async def test_an_engine_that_answers_404_and_lists_another_model_gets_nothing_until_it_has_its_own(
    engine: FakeEngine, endpoint: Endpoint
) -> None:
    with capture_logs() as logs:
        async with watching([endpoint]):
            await until(lambda: endpoint.identity.version)
            engine.models = OTHERS
            endpoint.models_are_doubted = True
            await until(lambda: endpoint.health.withheld == {OTHER_MODEL})
            assert endpoint.health.last_resort, "where no other is left, its own 404 says more than a 503"
            engine.models = FakeEngine.models
            endpoint.models_are_doubted = True
            await until(lambda: endpoint.health.healthy)
    assert [line["lists"] for line in logs if "another model" in line["event"]] == ["another"]


async def test_it_is_tried_again_after_a_while(
    engine: FakeEngine, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_MODELS_S", 0.0)
    engine.models, now_s = OTHERS, 1.0
    async with watching([endpoint], clock_s=lambda: now_s):
        endpoint.models_are_doubted = True
        await until(lambda: endpoint.health.withheld == {OTHER_MODEL})
        now_s += watch._OTHER_MODEL_S
        await until(lambda: endpoint.health.healthy)


@pytest.mark.parametrize("serves", [True, False])
async def test_an_engine_that_serves_a_name_which_it_does_not_list_goes_on(
    engine: FakeEngine, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, serves: bool
) -> None:
    """As SGLang does, whatever it is asked for; and a 404 may have been for a path."""
    monkeypatch.setattr(watch, "_MODELS_S", 0.0)
    engine.models = OTHERS
    async with watching([endpoint], clock_s=lambda: 1.0):
        if serves:
            endpoint.served_s, endpoint.models_are_doubted = 0.5, True
        await until(lambda: endpoint.identity.models == ("another",) and not endpoint.models_are_doubted)
        await until(lambda asked=engine.asked["/v1/models"]: engine.asked["/v1/models"] > asked + 2)  # type: ignore[misc]
    assert endpoint.health.healthy


def test_a_page_that_takes_long_to_read_is_read_less_often(endpoint: Endpoint) -> None:
    one = Watch(endpoint, QUICK, time.perf_counter)
    assert one._metrics_pause_ms() == QUICK.interval_ms
    one._reading_ms = 100.0
    assert one._metrics_pause_ms() == pytest.approx(5000.0)


async def test_a_counter_that_falls_is_a_restart(engine: FakeEngine, endpoint: Endpoint) -> None:
    engine.metrics = b"sglang:prompt_tokens_total 500\n"
    async with watching([endpoint]):
        await until(lambda: endpoint.report.prompt_tokens == 500)
        engine.metrics = b"sglang:prompt_tokens_total 3\n"
        await until(lambda: endpoint.generation == 1)


async def test_a_restart_of_an_engine_that_tells_no_start_time_counts_once(
    engine: FakeEngine, endpoint: Endpoint
) -> None:
    engine.metrics = b"sglang:prompt_tokens_total 500\n"
    async with watching([endpoint]) as observers:
        await until(lambda: endpoint.report.prompt_tokens == 500)
        await engine.stop()
        await until(lambda: not endpoint.health.healthy)
        engine.metrics = b"sglang:prompt_tokens_total 0\n"
        await engine.start()
        await until(lambda: endpoint.health.healthy and endpoint.report.prompt_tokens == 0)
        scrapes = counts(observers, endpoint).scrapes
        await until(lambda: counts(observers, endpoint).scrapes > scrapes + 5)
        assert (endpoint.generation, counts(observers, endpoint).restarts) == (1, 1)


async def test_counters_that_went_on_show_that_an_engine_was_only_busy(engine: FakeEngine, endpoint: Endpoint) -> None:
    engine.metrics = b"sglang:prompt_tokens_total 500\n"
    async with watching([endpoint], IMPATIENT):
        await until(lambda: endpoint.report.prompt_tokens == 500)
        engine.hanging.add("/health")
        await until(lambda: not endpoint.health.healthy)
        engine.metrics = b"sglang:prompt_tokens_total 900\n"
        engine.hanging.clear()
        await until(lambda: endpoint.health.healthy and endpoint.report.prompt_tokens == 900)
    assert endpoint.generation == 0


async def test_an_engine_without_metrics_that_was_gone_has_restarted_once(
    engine: FakeEngine, endpoint: Endpoint
) -> None:
    engine.metrics_status = 404
    async with watching([endpoint]) as observers:
        await until(lambda: endpoint.identity.version)
        await engine.stop()
        await until(lambda: not endpoint.health.healthy)
        await engine.start()
        await until(lambda: endpoint.generation == 1)
        scrapes = counts(observers, endpoint).scrapes
        await until(lambda: counts(observers, endpoint).scrapes > scrapes + 5)
        assert counts(observers, endpoint).restarts == 1


async def test_an_engine_that_comes_up_after_us_has_not_restarted(engine: FakeEngine, endpoint: Endpoint) -> None:
    await engine.stop()
    async with watching([endpoint]):
        await until(lambda: not endpoint.health.healthy)
        await engine.start()
        await until(lambda: endpoint.identity.version and not endpoint.report.stale)
    assert endpoint.generation == 0


async def test_down_and_up_is_a_restart_when_nothing_says_otherwise(engine: FakeEngine, endpoint: Endpoint) -> None:
    async with watching([endpoint]):
        await until(lambda: not endpoint.report.stale)
        await engine.stop()
        await until(lambda: not endpoint.health.healthy)
        await engine.start()
        await until(lambda: endpoint.generation == 1)


async def test_down_and_up_with_the_same_start_time_was_the_network(engine: FakeEngine, endpoint: Endpoint) -> None:
    engine.metrics = b"vllm:num_requests_running 0\nprocess_start_time_seconds 100\n"
    async with watching([endpoint]):
        await until(lambda: endpoint.report.process_start_s == 100)
        await engine.stop()
        await until(lambda: not endpoint.health.healthy)
        engine.metrics = engine.metrics.replace(b"running 0", b"running 5")
        await engine.start()
        await until(lambda: endpoint.health.healthy and endpoint.report.running_requests == 5)
    assert endpoint.generation == 0


async def test_an_engine_that_fails_its_requests_is_out_for_its_cool_down_though_probes_are_answered(
    endpoint: Endpoint,
) -> None:
    now_s = 100.0
    async with watching([endpoint], clock_s=lambda: now_s) as observers:
        await until(lambda: endpoint.identity.version)
        for _ in range(REQUEST_FAILURES_TO_EJECT):
            endpoint.request_failed(now_s)
        probes = counts(observers, endpoint).probes
        await until(lambda: counts(observers, endpoint).probes >= probes + 5)
        assert not endpoint.health.healthy
        now_s += FIRST_COOL_DOWN_S
        await until(lambda: endpoint.health.healthy)
    assert endpoint.generation == 0


async def test_an_exception_of_ours_is_counted_and_does_not_end_the_watch(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_text: bytes, _now_s: float) -> None:
        raise ArithmeticError("a fault of ours")

    monkeypatch.setattr("fairlead.engines.watch.read_metrics", broken)
    async with watching([endpoint]) as observers:
        await until(lambda: counts(observers, endpoint).faults >= 3)
        assert endpoint.health.healthy
        monkeypatch.undo()
        await until(lambda: not endpoint.report.stale)


def measured(monkeypatch: pytest.MonkeyPatch, *rtts_ms: float) -> list[float]:
    """Round trips as if measured, in order; the last one stays. Those that are left are in what is returned."""
    left = list(rtts_ms)

    async def connect_ms(_address: str, _timeout_s: float) -> float:
        return left.pop(0) if len(left) > 1 else left[0]

    monkeypatch.setattr("fairlead.engines.watch.connect_ms", connect_ms)
    return left


async def test_one_slow_round_trip_at_the_start_does_not_count(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, 4.8, 0.2, 0.3)
    async with watching([endpoint], QUICK.model_copy(update={"rtt_interval_ms": 60_000})):
        await until(lambda: endpoint.rtt_ms)
    assert endpoint.rtt_ms == pytest.approx(0.2)
    assert endpoint.rtt_spread_ms == pytest.approx(0.1)


async def test_a_slow_round_trip_among_the_last_few_does_not_count(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = measured(monkeypatch, *[2.0] * 5, 90.0, 2.0, 90.0, 80.0, 2.0)
    async with watching([endpoint]):
        await until(lambda: len(left) == 1)
    assert endpoint.rtt_ms == pytest.approx(2.0)


async def test_a_way_that_has_become_longer_is_believed_and_by_its_weight(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = measured(monkeypatch, *[2.0] * 5, *[10.0] * 6, 10.0)
    async with watching([endpoint], QUICK.model_copy(update={"rtt_alpha": 0.5})):
        await until(lambda: len(left) == 1)
        assert 2.0 < endpoint.rtt_ms < 10.0
        await until(lambda: endpoint.rtt_ms > 9.9)


async def test_an_engine_that_is_too_busy_to_answer_has_the_round_trip_of_its_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody_answers:
        endpoint = make_endpoint(f"127.0.0.1:{nobody_answers.getsockname()[1]}", "m")
        async with watching([endpoint], QUICK.model_copy(update={"timeout_ms": 10_000})):
            await until(lambda: endpoint.rtt_ms)
    assert 0 < endpoint.rtt_ms < 2.0
    assert 0 <= endpoint.rtt_spread_ms <= endpoint.rtt_ms


async def test_our_own_event_loop_adds_nothing_to_the_round_trip(engine: FakeEngine) -> None:
    async def hog() -> None:
        while True:
            time.sleep(0.02)  # noqa: ASYNC251  # as a long body does
            await asyncio.sleep(0)

    hogging = asyncio.create_task(hog())
    try:
        assert await connect_ms(engine.address, 10.0) < 5.0
    finally:
        hogging.cancel()


async def test_nobody_at_the_port_leaves_the_round_trip_as_it_was(engine: FakeEngine, endpoint: Endpoint) -> None:
    async with watching([endpoint]) as observers:
        await until(lambda: endpoint.rtt_ms > 0)
        await engine.stop()
        await until(lambda: not endpoint.health.healthy)
        settled, probes = endpoint.rtt_ms, counts(observers, endpoint).probes
        await until(lambda: counts(observers, endpoint).probes > probes + 5)
        assert endpoint.rtt_ms == settled


async def test_lone_unrelated_prompts_spread_over_engines_of_which_some_are_slow_to_answer_probes() -> None:
    engines = [FakeEngine(delays_s={"/version": delay_s, "/health": delay_s}) for delay_s in (0, 0.005, 0, 0.02)]
    for one in engines:
        await one.start()
    try:
        endpoints = [make_endpoint(one.address, "m") for one in engines]
        async with watching(endpoints):
            await until(lambda: all(endpoint.rtt_ms for endpoint in endpoints))
        router = Router(Pool(endpoints, {}), build_policy("fairlead", {}), fallbacks=0, rng=Random(0))
        chosen: Counter[str] = Counter()
        for number in range(30):
            request = RequestFacts(model="m", tokens=500 + number, max_output_tokens=None, language="en", bucket=0)
            in_flight = router.admit(request)
            assert isinstance(in_flight, InFlight)
            chosen[in_flight.decision.addresses[0]] += 1
            in_flight.withdraw(0.0)
        assert min(chosen[endpoint.address] for endpoint in endpoints) >= 7
    finally:
        for one in engines:
            await one.stop()


async def test_connections_are_kept(engine: FakeEngine, endpoint: Endpoint) -> None:
    async with watching([endpoint]):
        await until(lambda: sum(engine.asked.values()) > 60)
    assert len(engine.peers) <= 3  # one for each loop, if they ever ask at the same moment


@pytest.mark.parametrize(
    "models",
    [
        b"",
        b"[]",
        b'{"data":7}',
        b'{"data":[1,{"id":3,"max_model_len":"x"}]}',
        b'{"data":[{"id":"m","max_model_len":0}]}',
    ],
)
async def test_a_list_of_models_that_cannot_be_used_leaves_the_context_unknown(
    engine: FakeEngine, endpoint: Endpoint, models: bytes
) -> None:
    engine.models = models
    async with watching([endpoint]) as observers:
        await until(lambda: endpoint.identity.version)
        assert counts(observers, endpoint).faults == 0
    assert endpoint.max_model_len is None
    assert endpoint.health.healthy


async def test_an_engine_that_answered_404_is_asked_at_the_next_probe_what_it_serves(
    engine: FakeEngine, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_MODELS_S", 1e9)
    engine.models = b'{"data":[{"id":"m"},{"id":"sql"}]}'
    async with watching([endpoint]):
        await until(lambda: endpoint.identity.models == ("m", "sql"))
        engine.models = b'{"data":[{"id":"m"}]}'
        endpoint.models_are_doubted = True
        await until(lambda: endpoint.identity.models == ("m",))
    assert not endpoint.models_are_doubted


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_a_simulated_engine_that_dies_and_starts_again(kind: str) -> None:
    async with running_engine(EngineOptions(model="m", kind=kind)) as first:
        endpoint = make_endpoint(first.address, "m")
        port = int(first.address.rpartition(":")[2])
        async with watching([endpoint]):
            await until(lambda: endpoint.report.kv_capacity_tokens and endpoint.identity.models == ("m",))
            await first.stop()
            await until(lambda: not endpoint.health.healthy)
            async with running_engine(EngineOptions(model="m", kind=kind, port=port)):
                await until(lambda: endpoint.health.healthy and endpoint.generation == 1 and not endpoint.report.stale)


SGLANG = EngineOptions(model="m", kind="sglang")


async def test_a_real_version_and_an_adapter_as_requests_name_it_are_read_of_an_sglang() -> None:
    info = {"max_queued_requests": 8, "disable_radix_cache": True}
    async with running_engine(replace(SGLANG, adapters=("sql",), info=info)) as engine:
        endpoint = make_endpoint(engine.address, "m", engine="sglang")
        async with watching([endpoint]):
            await until(lambda: endpoint.identity.version)
    identity = endpoint.identity
    assert (identity.version, identity.models, identity.max_queued_requests) == ("0.5.23", ("m", "m:sql"), 8)
    assert not identity.caches_prefixes
    assert endpoint.health.healthy


async def test_an_sglang_whose_health_takes_as_long_as_its_steps_stays_in_the_pool() -> None:
    async with running_engine(SGLANG) as engine:  # its /health takes a second
        endpoint = make_endpoint(engine.address, "m", engine="sglang")
        async with watching([endpoint], IMPATIENT) as observers:
            await until(lambda: counts(observers, endpoint).probes > 5)
            assert counts(observers, endpoint).probe_failures == {}
    assert endpoint.health.ejections == 0


@pytest.mark.parametrize("mode", ["prefill", "decode"])
async def test_a_server_that_does_one_half_of_a_request_is_left_out(mode: str) -> None:
    async with running_engine(replace(SGLANG, info={"disaggregation_mode": mode})) as engine:
        endpoint = make_endpoint(engine.address, "m", engine="sglang")
        async with watching([endpoint]):
            await until(lambda: endpoint.identity.version)
    assert (endpoint.health.answers, endpoint.health.withheld, endpoint.health.healthy) == (
        True,
        frozenset({HALF}),
        False,
    )
    assert Pool([endpoint], {}).available("m") == []


@pytest.mark.parametrize("mode", ["prefill", "decode"])
async def test_a_server_that_is_configured_to_do_one_half_is_not_left_out(mode: Literal["prefill", "decode"]) -> None:
    async with running_engine(replace(SGLANG, info={"disaggregation_mode": mode})) as engine:
        endpoint = make_endpoint(engine.address, "m", engine="sglang", role=mode, kv_connector="sglang")
        with capture_logs() as logged:
            async with watching([endpoint]):
                await until(lambda: endpoint.identity.version)
    assert (endpoint.identity.serves_alone, endpoint.health.healthy) == (False, True)
    assert logged == []
