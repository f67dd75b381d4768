"""From a bucket of the duration histogram to a trace, in the format that has a place for it."""

from __future__ import annotations

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from fairlead.admin.metrics import FairleadCollector, render
from fairlead.core.histogram import DURATION_SECONDS
from fairlead.tracing.exemplars import Exemplars, Traced
from tests.extproc.world import Conversation, chat, request_body, request_headers, response_headers, response_trailers
from tests.tracing.test_tracer import SAMPLED, TRACE, UNSAMPLED, a_tracer, collecting

DURATION = "fairlead_request_duration_seconds"


async def page_after(*traceparents: str, open_metrics: bool) -> str:
    """The metrics after a request of each."""
    conversation = Conversation()
    async with collecting() as collector:
        conversation.services.tracer = tracer = a_tracer(collector.url)
        for traceparent in traceparents:
            again = Conversation(conversation.services)
            again.say(request_headers(extra={"traceparent": traceparent}), request_body(chat("large")))
            again.say(response_headers(), response_trailers())
            again.stream.close()
        await tracer.stop()
    return render(FairleadCollector(conversation.services), open_metrics=open_metrics).decode()


async def test_a_traced_request_is_the_exemplar_of_its_bucket() -> None:
    page = await page_after(SAMPLED, UNSAMPLED, open_metrics=True)
    families = text_string_to_metric_families(page)  # type: ignore[no-untyped-call]
    (family,) = [each for each in families if each.name == DURATION]
    found = [each for each in family.samples if each.exemplar is not None]
    assert [each.exemplar.labels for each in found if each.exemplar] == [{"trace_id": TRACE.hex()}]
    assert all(each.exemplar.value <= float(each.labels["le"]) for each in found if each.exemplar)


async def test_prometheus_own_format_has_no_place_for_it() -> None:
    assert TRACE.hex() not in await page_after(SAMPLED, open_metrics=False)


def test_the_newest_of_a_bucket_stays() -> None:
    kept = Exemplars()
    kept.keep("m", Traced("01", 0.3, 1000.0))
    kept.keep("m", Traced("02", 0.4, 1001.0))
    kept.keep("m", Traced("03", 10_000.0, 1002.0))
    assert {place: each.trace_id for place, each in kept.of("m").items()} == {
        DURATION_SECONDS.index(0.5): "02",
        len(DURATION_SECONDS): "03",
    }
    assert not kept.of("another")


def test_models_that_come_and_go_do_not_fill_memory() -> None:
    kept = Exemplars()
    for number in range(1000):
        kept.keep(f"m{number}", Traced("01", 0.3, 0.0))
    assert len(kept.by_model) == 256
    assert kept.of("m999")
