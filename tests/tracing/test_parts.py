"""What a request met besides its decision and its engine is a span of its own, also where it ended later."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from fairlead.core.trace import Part, Trace
from fairlead.tools.simulate.faults import Fault
from fairlead.tools.simulate.server import running_engine
from fairlead.tracing.tracer import Tracer
from tests.context.world import ask
from tests.decision_log.world import Pool
from tests.docs.test_privacy import names_after
from tests.extproc import test_prefilling, test_reuse
from tests.extproc.world import later, response_headers, response_trailers
from tests.migration.world import World, options
from tests.tracing.test_tracer import SAMPLED, TRACE, UNSAMPLED, Collector, a_tracer, collecting, values

OF_THE_DECISION = "Of the decision and of engines: "  # in the page on privacy


async def sent(tracer: Tracer, collector: Collector) -> dict[str, Span]:
    """The spans by their names."""
    await tracer.stop()
    return {span.name: span for span in collector.spans}


def noted(tracer: Tracer) -> Trace:
    trace = tracer.begin()
    assert trace is not None
    return trace


async def test_a_part_is_a_span_below_the_request_with_its_own_times() -> None:
    async with collecting() as collector:
        tracer = a_tracer(collector.url)
        trace = noted(tracer)
        trace.add(Part("fairlead.reuse", 0.25, 0.5, {"fairlead.forms": 2}))
        tracer.ended(Pool().ended(), SAMPLED.encode(), trace)
        spans = await sent(tracer, collector)
    part, whole = spans["fairlead.reuse"], spans["fairlead.request"]
    assert (part.trace_id, part.parent_span_id) == (TRACE, whole.span_id)
    assert part.end_time_unix_nano - part.start_time_unix_nano == pytest.approx(250e6, abs=1e4)
    assert part.start_time_unix_nano - whole.start_time_unix_nano == pytest.approx(250e6, abs=1e4)


async def test_a_part_that_ends_after_the_request_is_below_it_too() -> None:
    async with collecting() as collector:
        tracer = a_tracer(collector.url, sample=1.0)
        trace = noted(tracer)
        tracer.ended(Pool().ended(), b"", trace)
        trace.add(Part("fairlead.migration", 1.0, 3.0, error="import_timeout"))
        spans = await sent(tracer, collector)
    part, whole = spans["fairlead.migration"], spans["fairlead.request"]
    assert (part.trace_id, part.parent_span_id) == (whole.trace_id, whole.span_id)
    assert part.status.code == Status.STATUS_CODE_ERROR
    assert values(part.attributes) == {"error.type": "import_timeout"}


async def test_of_a_request_that_is_not_sampled_no_part_is_sent() -> None:
    async with collecting() as collector:
        tracer = a_tracer(collector.url)
        trace = noted(tracer)
        trace.add(Part("fairlead.reuse", 0.0, 0.1))
        tracer.ended(Pool().ended(), UNSAMPLED.encode(), trace)
        trace.add(Part("fairlead.migration", 1.0, 3.0))
        assert await sent(tracer, collector) == {}
    assert trace.traceparent == ""


async def test_waiting_for_an_engine_ends_with_the_decision_and_is_below_it() -> None:
    async with collecting() as collector:
        tracer = a_tracer(collector.url)
        ended = msgspec.structs.replace(Pool().ended(), waited_ms=40.0)
        tracer.ended(ended, SAMPLED.encode())
        spans = await sent(tracer, collector)
    wait, decide = spans["fairlead.wait"], spans["fairlead.decide"]
    assert wait.parent_span_id == decide.span_id
    assert wait.end_time_unix_nano == decide.end_time_unix_nano
    assert wait.end_time_unix_nano - wait.start_time_unix_nano == pytest.approx(40e6, abs=1e4)


async def test_context_reuse_is_a_part() -> None:
    async with collecting() as collector:
        tracer, sidecar = a_tracer(collector.url), test_reuse.Sidecar()
        sidecar.services = replace(sidecar.services, tracer=tracer)
        sidecar.send(ask("one", "two"), traceparent=SAMPLED)
        spans = await sent(tracer, collector)
    assert set(values(spans["fairlead.reuse"].attributes)) <= names_after(OF_THE_DECISION)


@pytest.mark.parametrize(("fault", "error"), [(None, None), (Fault("error", status=500), "status")])
async def test_a_prompt_that_another_endpoint_computes_is_a_part_failed_or_not(
    fault: Fault | None, error: str | None
) -> None:
    async with collecting() as collector, test_prefilling.world() as (services, engine):
        services.tracer = tracer = a_tracer(collector.url, sample=1.0)
        if fault is not None:
            engine.faults.set(fault)
        conversation = test_prefilling.asked(services)
        await later(conversation)
        conversation.say(response_headers(200, served=test_prefilling.DECODE), response_trailers())
        conversation.stream.close()
        spans = await sent(tracer, collector)
    shown = values(spans["fairlead.prefill"].attributes)
    assert shown["server.address"] == engine.address
    assert shown.get("error.type") == error


async def test_a_copy_of_a_sessions_kv_is_a_part() -> None:
    async with collecting() as collector, running_engine(options()) as one, running_engine(options()) as two:
        tracer, world = a_tracer(collector.url), World([one, two])
        trace = noted(tracer)
        turn = await world.turn()
        world.mover.offer(turn.move, turn.facts, "/v1/chat/completions", turn.body, trace)
        tracer.ended(Pool().ended(), SAMPLED.encode(), trace)
        await world.idle()
        await asyncio.sleep(0)  # its last callbacks
        spans = await sent(tracer, collector)
    shown = values(spans["fairlead.migration"].attributes)
    assert (shown["fairlead.source"], shown["fairlead.target"]) == (one.address, two.address)
    assert "error.type" not in shown
    assert set(shown) <= names_after(OF_THE_DECISION)
