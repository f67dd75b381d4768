"""The metrics page: names, units, and labels that do not grow."""

from __future__ import annotations

import math

from prometheus_client.parser import text_string_to_metric_families

from fairlead.telemetry.metrics import FairleadCollector, render
from fairlead.telemetry.recorder import Histogram
from tests.extproc.world import Conversation, chat, request_body, request_headers, response_headers, response_trailers


def families(conversation: Conversation) -> dict[str, object]:
    collector = FairleadCollector(
        conversation.shared.router, conversation.shared.recorder, conversation.shared.learner, lambda: 3
    )
    return {family.name: family for family in text_string_to_metric_families(render(collector).decode())}


def test_the_page_parses_and_has_the_promised_metrics() -> None:
    conversation = Conversation()
    conversation.say(request_headers(), request_body(chat("large")), response_headers(), response_trailers())
    assert set(families(conversation)) >= {
        "fairlead_requests",
        "fairlead_decision_seconds",
        "fairlead_cost_milliseconds",
        "fairlead_inflight_requests",
        "fairlead_pending_prefill_tokens",
        "fairlead_rtt_seconds",
        "fairlead_prompt_tokens",
        "fairlead_attempts",
        "fairlead_request_duration_seconds",
        "fairlead_endpoint_up",
        "fairlead_failures",
        "fairlead_running_streams",
        "fairlead_reloads_refused",
        "fairlead_sessions",
        "fairlead_prefix_hit_tokens",
        "fairlead_prefix_index_bytes",
        "fairlead_endpoint_ejections",
        "fairlead_engine_scrapes",
        "fairlead_time_to_first_token_seconds",
    }


def test_a_request_is_counted_by_route_model_endpoint_and_code() -> None:
    conversation = Conversation()
    conversation.say(request_headers(), request_body(chat("large")), response_headers(503), response_trailers())
    collector = FairleadCollector(
        conversation.shared.router, conversation.shared.recorder, conversation.shared.learner, lambda: 0
    )
    line = 'fairlead_requests_total{code="503",endpoint="10.0.0.3:1",model="large",route="large"} 1.0'
    assert line in render(collector).decode().splitlines()


def test_what_clients_invent_makes_no_new_series() -> None:
    def series(names: list[str]) -> int:
        conversation = Conversation()
        for name in names:
            each = Conversation(conversation.shared)
            headers = {"x-session-id": name, "x-fairlead-attempted-models": name}
            each.say(request_headers(extra=headers), request_body(chat(name)), response_headers())
            each.say(request_headers(extra=headers), request_body(chat("small", user=name)), response_trailers())
        collector = FairleadCollector(
            conversation.shared.router, conversation.shared.recorder, conversation.shared.learner, lambda: 0
        )
        return len(render(collector).splitlines())

    assert series([f"invented-{n}" for n in range(200)]) == series([f"invented-{n}" for n in range(20)])


def test_a_histogram_counts_each_value_once() -> None:
    histogram = Histogram((1.0, 10.0))
    for value in (0.5, 1.0, 5.0, 100.0, math.inf):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 2]
