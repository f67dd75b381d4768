"""The metrics page: names, units, and labels that do not grow."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairlead.admin.metrics import FairleadCollector, render
from fairlead.api.refusals import no_endpoint, too_many_bodies
from fairlead.core.endpoint import Role
from fairlead.core.histogram import Histogram
from fairlead.core.ledger import Ticket
from fairlead.core.pool import Pool
from fairlead.core.reported import EngineIdentity
from fairlead.core.router import Router
from fairlead.discovery import SourceStatus
from fairlead.edge.statistics import EdgeStatistics
from fairlead.extproc.recorder import MOST_SERIES, Recorder
from fairlead.policies import build_policy
from tests.core.world import make_endpoint
from tests.extproc.world import (
    Conversation,
    chat,
    request_body,
    request_headers,
    response_headers,
    response_trailers,
    services_around,
)


def families(conversation: Conversation) -> dict[str, object]:
    collector = FairleadCollector(conversation.services)
    return {family.name: family for family in text_string_to_metric_families(render(collector).decode())}


def test_the_page_parses_and_has_the_promised_metrics() -> None:
    conversation = Conversation()
    conversation.say(request_headers(), request_body(chat("large")), response_headers(), response_trailers())
    assert set(families(conversation)) >= {
        "fairlead_build_info",
        "process_cpu_seconds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "fairlead_requests",
        "fairlead_decision_seconds",
        "fairlead_cost_seconds",
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


def test_what_an_engine_has_forgotten_is_counted_no_more() -> None:
    conversation = Conversation()
    long = [{"role": "user", "content": "x" * 4096}]
    conversation.say(request_headers(), request_body(chat("large", messages=long)))

    def blocks() -> float:
        lines = render(FairleadCollector(conversation.services)).decode().splitlines()
        (line,) = [each for each in lines if each.startswith('fairlead_prefix_index_blocks{endpoint="10.0.0.3:1"}')]
        return float(line.rsplit(" ", 1)[1])

    assert blocks() == 8
    conversation.services.router.index.forget("10.0.0.3:1")  # as when its KV events say so
    assert blocks() == 0


def test_costs_are_shown_in_seconds_as_all_times_are() -> None:
    conversation = Conversation()
    conversation.say(request_headers(), request_body(chat("large")), response_headers(), response_trailers())
    services = conversation.services
    services.recorder.settle()
    total = services.recorder.cost_ms["total"]
    lines = render(FairleadCollector(services)).decode().splitlines()
    (seconds,) = [line for line in lines if line.startswith('fairlead_cost_seconds_sum{term="total"}')]
    assert float(seconds.rsplit(" ", 1)[1]) == pytest.approx(total.sum / 1e3)
    bounds = [line.split('le="')[1].split('"')[0] for line in lines if line.startswith("fairlead_cost_seconds_bucket")]
    assert bounds[: len(total.counts)] == [*[f"{float(bound) / 1e3}" for bound in total.bounds], "+Inf"]


def test_the_edge_is_shown_where_there_is_one_that_counts() -> None:
    conversation = Conversation()
    assert not any(name.startswith("fairlead_edge_") for name in families(conversation))
    conversation.services.edge = lambda: EdgeStatistics(2, 3, 4, {"protocol_error": 5}, 6)
    lines = render(FairleadCollector(conversation.services)).decode().splitlines()
    assert [line for line in lines if line.startswith("fairlead_edge_") and "_created" not in line] == [
        "fairlead_edge_connections 2.0",
        "fairlead_edge_connections_refused_total 3.0",
        "fairlead_edge_streams_refused_total 4.0",
        'fairlead_edge_faults_total{code="protocol_error"} 5.0',
        "fairlead_edge_unfinished_bytes 6.0",
    ]


def test_a_request_is_counted_by_route_model_endpoint_and_code() -> None:
    conversation = Conversation()
    conversation.say(request_headers(), request_body(chat("large")), response_headers(503), response_trailers())
    collector = FairleadCollector(conversation.services)
    line = 'fairlead_requests_total{code="503",endpoint="10.0.0.3:1",model="large",route="large"} 1.0'
    assert line in render(collector).decode().splitlines()


def test_a_body_that_is_refused_is_no_endpoint_that_is_missing() -> None:
    """Both are a 503, and for one of them somebody is woken up."""
    conversation = Conversation()
    recorder = conversation.services.recorder
    for route, answer in (("", too_many_bodies()), ("large", no_endpoint()), ("", no_endpoint())):
        recorder.refused(route, answer, 0.0, b"")
    lines = render(FairleadCollector(conversation.services)).decode().splitlines()
    assert {each for each in lines if each.startswith("fairlead_refused_requests_total")} == {
        'fairlead_refused_requests_total{reason="too_many_bodies",route=""} 1.0',
        'fairlead_refused_requests_total{reason="no_endpoint",route="large"} 1.0',
        'fairlead_refused_requests_total{reason="no_endpoint",route=""} 1.0',
    }


@pytest.mark.parametrize("role", ["decode", "both"])
def test_in_a_pool_with_roles_requests_that_another_computes_for_are_told_from_those_that_are_there(role: Role) -> None:
    spec: dict[str, Any] = {"kv_connector": "nixl", "identity": EngineIdentity("0.32.0")}
    endpoints = [make_endpoint("10.0.0.1:1", "m", **spec), make_endpoint("10.0.0.2:1", "m", role=role, **spec)]
    router = Router(Pool(endpoints, {}), build_policy("fairlead", {}), fallbacks=0, rng=Random(0))
    Ticket(endpoints[1], 100, 0, awaits_other=True)
    page = render(FairleadCollector(services_around(router))).decode()
    assert ('fairlead_awaited_requests{endpoint="10.0.0.2:1"} 1.0' in page) == (role == "decode")


def test_what_clients_invent_makes_no_new_series() -> None:
    def series(names: list[str]) -> int:
        conversation = Conversation()
        for name in names:
            each = Conversation(conversation.services)
            headers = {"x-session-id": name, "x-fairlead-attempted-models": name}
            each.say(request_headers(extra=headers), request_body(chat(name)), response_headers())
            each.say(request_headers(extra=headers), request_body(chat("small", user=name)), response_trailers())
        collector = FairleadCollector(conversation.services)
        return len(render(collector).splitlines())

    assert series([f"invented-{n}" for n in range(200)]) == series([f"invented-{n}" for n in range(20)])


def test_a_histogram_counts_each_value_once() -> None:
    histogram = Histogram((1.0, 10.0))
    for value in (0.5, 1.0, 5.0, 100.0, math.inf):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 2]


def test_names_that_clients_make_up_do_not_grow_the_page_without_bound() -> None:
    recorder = Recorder()
    for number in range(2 * MOST_SERIES):
        recorder.refused(f"made-up-{number}", no_endpoint(), 0.0, b"")
    assert len(recorder.requests) <= MOST_SERIES + 1
    assert sum(recorder.requests.values()) == 2 * MOST_SERIES
    assert len(recorder.refused_for) <= MOST_SERIES + 1
    assert sum(recorder.refused_for.values()) == 2 * MOST_SERIES


def test_what_other_routers_left_is_shown_while_there_are_any() -> None:
    conversation = Conversation()
    others = conversation.services.router.others
    for _ in range(50):
        others.answered(1000, 600, 200)

    def shown() -> float:
        lines = render(FairleadCollector(conversation.services)).decode().splitlines()
        (line,) = [each for each in lines if each.startswith("fairlead_learned_others_cached_ratio ")]
        return float(line.split()[1])

    assert shown() == 0
    others.look(())
    assert shown() == pytest.approx(0.5)


def test_a_source_that_was_never_read_is_as_old_as_the_sidecar_is() -> None:
    conversation = Conversation()
    services, now_s = conversation.services, 100.0
    status = SourceStatus("dns", lambda: now_s)
    services.discovery.statuses = (status,)
    now_s = 142.0
    status.failed("the name server does not answer")
    shown = render(FairleadCollector(services)).decode()
    assert 'fairlead_discovery_age_seconds{source="dns"} 42.0' in shown
    assert 'fairlead_discovered_endpoints{source="dns"}' not in shown  # none is known: 0 would be a set that was read
