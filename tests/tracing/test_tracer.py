"""Spans of requests that ended, at a receiver that reads them with OpenTelemetry's own messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from structlog.testing import capture_logs

from fairlead.tracing import tracer as tracing
from fairlead.tracing.tracer import Tracer
from tests.extproc.world import Conversation, chat, request_body, request_headers, response_headers, response_trailers

TRACE, PARENT = bytes(range(16)), bytes(range(8))
SAMPLED = f"00-{TRACE.hex()}-{PARENT.hex()}-01"
UNSAMPLED = f"00-{TRACE.hex()}-{PARENT.hex()}-00"


class Collector:
    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.spans: list[Span] = []
        self.came = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        message = ExportTraceServiceRequest.FromString(await request.read())
        for resource in message.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        self.came.set()
        return web.Response(status=self.status)


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"
    try:
        yield collector
    finally:
        await runner.cleanup()


def served(tracer: Tracer, traceparent: str | None, *, status: int = 200) -> None:
    """A request that ends, through the whole protocol."""
    conversation = Conversation()
    conversation.services.tracer = tracer
    more = {} if traceparent is None else {"traceparent": traceparent}
    conversation.say(request_headers(extra=more), request_body(chat("large")))
    conversation.say(response_headers(status=status), response_trailers())
    conversation.stream.close()


def a_tracer(url: str, sample: float = 0.0) -> Tracer:
    return Tracer(url, sample=sample, clock_s=Conversation().services.clock_s)


def values(attributes: object) -> dict[str, object]:
    def value(of: KeyValue) -> object:
        return getattr(of.value, of.value.WhichOneof("value") or "string_value")

    return {attribute.key: value(attribute) for attribute in attributes}  # type: ignore[attr-defined]


async def test_a_request_of_a_sampled_trace_gives_three_spans_below_its_parent() -> None:
    async with collecting() as collector:
        tracer = a_tracer(collector.url)
        served(tracer, SAMPLED)
        await tracer.stop()
    whole, decide, engine = collector.spans
    assert [span.name for span in collector.spans] == ["fairlead.request", "fairlead.decide", "fairlead.engine"]
    assert {span.trace_id for span in collector.spans} == {TRACE}
    assert whole.parent_span_id == PARENT
    assert decide.parent_span_id == engine.parent_span_id == whole.span_id
    assert whole.start_time_unix_nano == decide.start_time_unix_nano <= decide.end_time_unix_nano
    assert decide.end_time_unix_nano == engine.start_time_unix_nano <= engine.end_time_unix_nano
    assert abs(whole.end_time_unix_nano / 1e9 - time.time()) < 600


async def test_the_decision_shows_the_terms_of_its_cost() -> None:
    async with collecting() as collector:
        tracer = a_tracer(collector.url)
        served(tracer, SAMPLED)
        await tracer.stop()
    shown = values(collector.spans[1].attributes)
    terms = [shown[f"fairlead.cost.{term}_ms"] for term in ("rtt", "prefill", "queue", "decode")]
    probability = shown["fairlead.cost.success_probability"]
    assert isinstance(probability, float)
    assert shown["fairlead.cost.total_ms"] == pytest.approx(sum(map(float, terms)) / probability)  # type: ignore[arg-type]
    assert shown["fairlead.why"] in ("cost", "affinity")


async def test_a_trace_that_is_not_sampled_stays_so_and_no_trace_goes_by_the_share() -> None:
    async with collecting() as collector:
        tracer = a_tracer(collector.url, sample=1.0)
        served(tracer, UNSAMPLED)
        served(tracer, None)
        served(tracer, "no traceparent")
        await tracer.stop()
    assert [span.name for span in collector.spans].count("fairlead.request") == 2
    assert all(not span.parent_span_id for span in collector.spans if span.name == "fairlead.request")


async def test_an_engines_failure_is_an_error_of_its_span() -> None:
    async with collecting() as collector:
        tracer = a_tracer(collector.url)
        served(tracer, SAMPLED, status=502)
        await tracer.stop()
    whole, decide, engine = collector.spans
    assert [s.status.code == Status.STATUS_CODE_ERROR for s in (whole, decide, engine)] == [True, False, True]
    assert values(whole.attributes)["http.response.status_code"] == 502


async def test_a_collector_that_is_away_costs_spans_that_are_counted_and_nothing_else() -> None:
    tracer = a_tracer("http://127.0.0.1:9/v1/traces")
    served(tracer, SAMPLED)
    await tracer.stop()
    assert tracer.counts == {"sent": 0, "dropped": 0, "failed": 1}


@pytest.mark.parametrize("place", ["127.0.0.1:9", "127.0.0.1:x", "a..b:4318"])
async def test_the_log_says_that_traces_were_not_sent_and_not_the_collectors_password(place: str) -> None:
    tracer = a_tracer(f"http://user:hush@{place}/v1/traces")
    served(tracer, SAMPLED)
    with capture_logs() as logged:
        await tracer.stop()
    assert tracer.counts["failed"] == 1
    assert [entry["collector"] for entry in logged] == [f"http://{place}/v1/traces"]
    assert "hush" not in str(logged)


async def test_a_collector_that_refuses_is_a_failure_too() -> None:
    async with collecting() as collector:
        collector.status = 429
        tracer = a_tracer(collector.url)
        served(tracer, SAMPLED)
        await tracer.stop()
    assert tracer.counts["failed"] == 1


def test_what_waits_to_be_sent_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MOST_WAITING", 2)
    tracer = a_tracer("http://127.0.0.1:9/v1/traces")
    for _ in range(5):
        served(tracer, SAMPLED)
    assert tracer.counts["dropped"] == 3


async def test_it_sends_by_itself_while_it_runs() -> None:
    async with collecting() as collector:
        tracer = a_tracer(collector.url)
        tracer.start()
        served(tracer, SAMPLED)
        async with asyncio.timeout(60):
            await collector.came.wait()
        await tracer.stop()
    assert tracer.counts["sent"] == 1
