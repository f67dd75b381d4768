"""A cascade in a trace: its judges and larger models are spans of the request that they were asked for."""

from __future__ import annotations

import time
from typing import Any

import aiohttp
import msgspec

from fairlead.cascade.counts import CascadeCounts
from fairlead.cascade.escalation import Escalation
from fairlead.cascade.judge import FunctionJudge
from fairlead.cascade.route import CascadeRoute, Entry
from fairlead.tracing.context import read_traceparent
from tests.cascade.conftest import Endpoint
from tests.cascade.test_escalation import first
from tests.decision_log.world import Pool
from tests.tracing.test_parts import noted, sent
from tests.tracing.test_tracer import SAMPLED, TRACE, a_tracer, collecting, values


async def test_judges_and_larger_models_are_parts_and_what_larger_models_do_is_below_the_request(
    endpoint: Endpoint,
) -> None:
    async def by_name(asked: dict[str, Any]) -> str:
        return str(asked["model"])

    route = CascadeRoute(name="answer", models=("small", "large"), thresholds=(70.0,))
    async with collecting() as collector, aiohttp.ClientSession() as session:
        tracer = a_tracer(collector.url)
        escalation = Escalation(await endpoint(by_name), CascadeCounts(), time.perf_counter)
        escalation.session, escalation.judges = session, {"answer": FunctionJudge(lambda _, __: 30)}
        trace = noted(tracer)
        tracer.ended(Pool().ended(), SAMPLED.encode(), trace)
        body = msgspec.json.encode({"model": "answer", "messages": [{"role": "user", "content": "?"}]})
        entry = Entry(route, 0, "/v1/chat/completions", body, streams=False, with_usage=False)
        await escalation.settle(entry, {b"traceparent": SAMPLED.encode()}, b"id", first("small"), 1e9, trace)
        spans = await sent(tracer, collector)
    judged, stage = values(spans["fairlead.judge"].attributes), values(spans["fairlead.stage"].attributes)
    assert judged == {"gen_ai.response.model": "small", "gen_ai.evaluation.score.value": 30.0}
    assert stage == {"gen_ai.response.model": "large"}
    asked_with = read_traceparent(trace.traceparent.encode())
    assert asked_with is not None
    assert (asked_with.trace_id, asked_with.span_id) == (TRACE, spans["fairlead.request"].span_id)
