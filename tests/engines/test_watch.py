"""One watch on one engine over real HTTP: what it writes on the endpoint."""

from __future__ import annotations

import pytest

from fairlead.core.health import FIRST_COOL_DOWN_S, REQUEST_FAILURES_TO_EJECT
from fairlead.core.pool import Endpoint
from fairlead.engines.metrics_text import MOST_BYTES
from fairlead.engines.observer import Observers
from fairlead.engines.watch import WatchCounts
from fairlead.simulate.engine_metrics import EngineKind
from fairlead.simulate.server import EngineOptions, running_engine
from tests.engines.world import IMPATIENT, QUICK, FakeEngine, until, watching


def counts(observers: Observers, endpoint: Endpoint) -> WatchCounts:
    return observers.counts[endpoint.address]


async def test_a_healthy_engine_is_read_identified_and_measured(endpoint: Endpoint) -> None:
    async with watching([endpoint]):
        await until(lambda: endpoint.rtt_ms > 0 and not endpoint.reported.stale and endpoint.identity.version)
    assert endpoint.healthy
    assert endpoint.generation == 0
    assert endpoint.reported.running_requests == 0
    assert endpoint.identity.version == "0.32.0"
    assert endpoint.max_model_len == 4096


async def test_an_engine_that_goes_down_is_ejected_and_comes_back(engine: FakeEngine, endpoint: Endpoint) -> None:
    async with watching([endpoint]) as observers:
        await until(lambda: endpoint.identity.version)
        await engine.stop()
        await until(lambda: not endpoint.healthy)
        assert counts(observers, endpoint).probe_failures.keys() <= {"connect", "protocol"}
        await engine.start()
        await until(lambda: endpoint.healthy)
    assert (endpoint.health.ejections, endpoint.health.returns) == (1, 1)


async def test_an_engine_that_is_not_there_at_the_start_is_ejected() -> None:
    gone = FakeEngine()
    await gone.start()
    await gone.stop()
    endpoint = Endpoint(gone.address, "m")
    async with watching([endpoint]):
        await until(lambda: not endpoint.healthy)
    assert endpoint.reported.stale
    assert endpoint.rtt_ms == 0


async def test_an_engine_whose_health_is_5xx_is_ejected_though_its_metrics_are_fine(
    engine: FakeEngine, endpoint: Endpoint
) -> None:
    engine.health_status = 503
    async with watching([endpoint]) as observers:
        await until(lambda: not endpoint.healthy)
        assert counts(observers, endpoint).probe_failures == {"status": counts(observers, endpoint).probes}
        engine.health_status = 200
        await until(lambda: endpoint.healthy)


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
        await until(lambda: not endpoint.healthy)
        assert counts(observers, endpoint).probe_failures.keys() == {"timeout"}
        await until(lambda: endpoint.reported.stale)
        engine.hanging.clear()
        await until(lambda: endpoint.healthy and not endpoint.reported.stale)


async def test_metrics_that_hang_do_not_eject(engine: FakeEngine, endpoint: Endpoint) -> None:
    engine.hanging.add("/metrics")
    async with watching([endpoint], IMPATIENT) as observers:
        await until(lambda: counts(observers, endpoint).scrape_failures.get("timeout", 0) >= QUICK.failures_to_eject)
    assert endpoint.health.ejections == 0
    assert endpoint.reported.stale


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
    assert endpoint.healthy
    assert endpoint.reported.running_requests is None


async def test_a_redirect_is_not_followed(engine: FakeEngine, endpoint: Endpoint) -> None:
    engine.metrics_status, engine.headers = 307, {"location": "/elsewhere"}
    async with watching([endpoint]) as observers:
        await until(lambda: counts(observers, endpoint).scrape_failures.get("status", 0) >= 2)
    assert engine.asked["/elsewhere"] == 0


async def test_a_report_becomes_stale_when_metrics_stop_and_fresh_when_they_are_back(
    engine: FakeEngine, endpoint: Endpoint
) -> None:
    async with watching([endpoint]):
        await until(lambda: not endpoint.reported.stale)
        engine.metrics_status = 500
        await until(lambda: endpoint.reported.stale)
        assert endpoint.reported.running_requests == 0  # what was seen last is kept, as what it is
        engine.metrics_status, engine.metrics = 200, b"vllm:num_requests_running 1\n"
        await until(lambda: endpoint.reported.running_requests == 1 and not endpoint.reported.stale)


async def test_a_page_that_says_work_and_never_moves_becomes_stale(engine: FakeEngine, endpoint: Endpoint) -> None:
    engine.metrics = b"vllm:num_requests_running 1\n"
    async with watching([endpoint]) as observers:
        await until(lambda: endpoint.reported.running_requests == 1 and endpoint.reported.stale)
        assert counts(observers, endpoint).scrape_failures == {}


async def test_a_new_start_time_is_a_restart_and_the_engine_is_asked_again_what_it_is(
    engine: FakeEngine, endpoint: Endpoint
) -> None:
    engine.metrics = b"vllm:num_requests_running 0\nprocess_start_time_seconds 100\n"
    async with watching([endpoint]) as observers:
        await until(lambda: endpoint.identity.version and endpoint.reported.process_start_s == 100)
        engine.version = b'{"version":"0.33.0"}'
        engine.metrics = engine.metrics.replace(b"100", b"200")
        await until(lambda: endpoint.generation == 1 and endpoint.identity.version == "0.33.0")
        assert counts(observers, endpoint).restarts == 1


async def test_a_counter_that_falls_is_a_restart(engine: FakeEngine, endpoint: Endpoint) -> None:
    engine.metrics = b"sglang:prompt_tokens_total 500\n"
    async with watching([endpoint]):
        await until(lambda: endpoint.reported.prompt_tokens == 500)
        engine.metrics = b"sglang:prompt_tokens_total 3\n"
        await until(lambda: endpoint.generation == 1)


async def test_down_and_up_is_a_restart_when_nothing_says_otherwise(engine: FakeEngine, endpoint: Endpoint) -> None:
    async with watching([endpoint]):
        await until(lambda: not endpoint.reported.stale)
        await engine.stop()
        await until(lambda: not endpoint.healthy)
        await engine.start()
        await until(lambda: endpoint.generation == 1)


async def test_down_and_up_with_the_same_start_time_was_the_network(engine: FakeEngine, endpoint: Endpoint) -> None:
    engine.metrics = b"vllm:num_requests_running 0\nprocess_start_time_seconds 100\n"
    async with watching([endpoint]):
        await until(lambda: endpoint.reported.process_start_s == 100)
        await engine.stop()
        await until(lambda: not endpoint.healthy)
        engine.metrics = engine.metrics.replace(b"running 0", b"running 5")
        await engine.start()
        await until(lambda: endpoint.healthy and endpoint.reported.running_requests == 5)
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
        assert not endpoint.healthy
        now_s += FIRST_COOL_DOWN_S
        await until(lambda: endpoint.healthy)
    assert endpoint.generation == 0


async def test_an_exception_of_ours_is_counted_and_does_not_end_the_watch(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_text: bytes, _now_s: float) -> None:
        raise ArithmeticError("a fault of ours")

    monkeypatch.setattr("fairlead.engines.watch.read_metrics", broken)
    async with watching([endpoint]) as observers:
        await until(lambda: counts(observers, endpoint).faults >= 3)
        assert endpoint.healthy
        monkeypatch.undo()
        await until(lambda: not endpoint.reported.stale)


async def test_the_first_round_trip_counts_in_full_and_later_ones_by_their_weight(
    engine: FakeEngine, endpoint: Endpoint
) -> None:
    endpoint.rtt_ms = 5000.0  # of an earlier watch
    async with watching([endpoint], QUICK.model_copy(update={"rtt_alpha": 0.01})):
        await until(lambda: endpoint.rtt_ms < 1000)
        endpoint.rtt_ms, asked = 5000.0, engine.asked["/version"]
        await until(lambda: engine.asked["/version"] >= asked + 8)
        measured_at_most = (engine.asked["/version"] - asked) / 2 + 1
        assert 5000 * 0.99**measured_at_most <= endpoint.rtt_ms < 5000 * 0.99 + 1000 * 0.01


async def test_the_time_that_an_engine_takes_for_its_work_is_not_round_trip(
    engine: FakeEngine, endpoint: Endpoint
) -> None:
    engine.delays_s = {"/metrics": 0.5, "/health": 0.5}  # as SGLang's, which generates a token for it
    async with watching([endpoint]):
        await until(lambda: endpoint.rtt_ms > 0 and not endpoint.reported.stale)
        assert endpoint.rtt_ms < 500
    assert endpoint.healthy


async def test_a_failed_probe_leaves_the_round_trip_as_it_was(engine: FakeEngine, endpoint: Endpoint) -> None:
    async with watching([endpoint], IMPATIENT):
        await until(lambda: endpoint.rtt_ms > 0)
        engine.hanging.add("/version")
        asked = engine.asked["/version"]
        await until(lambda: engine.asked["/version"] >= asked + 1)
        settled = endpoint.rtt_ms
        asked = engine.asked["/version"]
        await until(lambda: engine.asked["/version"] >= asked + 2)
        assert endpoint.rtt_ms == settled


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
    assert endpoint.healthy


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
async def test_a_simulated_engine_that_dies_and_starts_again(kind: EngineKind) -> None:
    async with running_engine(EngineOptions(model="m", kind=kind)) as first:
        endpoint = Endpoint(first.address, "m")
        port = int(first.address.rpartition(":")[2])
        async with watching([endpoint]):
            await until(lambda: endpoint.reported.kv_capacity_tokens and endpoint.identity.models == ("m",))
            await first.stop()
            await until(lambda: not endpoint.healthy)
            async with running_engine(EngineOptions(model="m", kind=kind, port=port)):
                await until(lambda: endpoint.healthy and endpoint.generation == 1 and not endpoint.reported.stale)
