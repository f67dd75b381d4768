"""When an endpoint has room for one more request."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from fairlead.admission.gate import Gate, engine_ms
from fairlead.admission.waiting import Lane
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.ledger import Ticket
from fairlead.core.load import Load
from fairlead.core.migration import NOTHING_IS_HOT
from fairlead.core.placement import Placement
from fairlead.core.pool import Pool
from fairlead.core.prefix_index import PrefixIndex
from fairlead.core.reported import EngineReport
from fairlead.core.sessions import SessionTable
from tests.core.world import carries, make_endpoint

LANE = Lane("m", "m")
FACTS = RequestFacts("m", 1000, None, "en", 0)


def gate_of(endpoints: Sequence[Endpoint], begin_within_ms: float | None = None) -> Gate:
    pool = Pool(endpoints, {})
    return Gate(Placement(pool, PrefixIndex(), SessionTable(), NOTHING_IS_HOT), begin_within_ms)


def is_open(*endpoints: Endpoint, lane: Lane = LANE, share: float = 1.0, now_s: float = 0.0) -> bool:
    return gate_of(endpoints, 500.0).is_open(lane, share, now_s)


def busy(address: str = "a:1", **fields: object) -> Endpoint:
    fields = {"inflight_requests": 5, "prefill_ms_per_token": 0.1, **fields}
    return make_endpoint(address, **fields)  # type: ignore[arg-type]


def test_one_endpoint_with_room_is_enough() -> None:
    full = busy(pending_prefill_tokens=5001)
    assert not is_open(full)
    assert is_open(full, busy("b:1", pending_prefill_tokens=4999))


def test_an_idle_endpoint_has_room_for_anything() -> None:
    assert is_open(make_endpoint("a:1", pending_prefill_tokens=10**9))


def test_a_share_keeps_room_for_higher_levels() -> None:
    assert not is_open(busy(pending_prefill_tokens=4000), share=0.5)


def test_an_unhealthy_endpoint_and_one_outside_the_subset_have_no_room() -> None:
    full = busy(pending_prefill_tokens=9000)
    assert not is_open(full, make_endpoint("b:1", healthy=False))
    assert not is_open(full, make_endpoint("b:1"), lane=Lane("m", "m", frozenset({"a:1"})))


def test_without_any_endpoint_it_is_open_so_that_its_requests_are_refused() -> None:
    assert is_open(make_endpoint("a:1", healthy=False))


def test_a_full_kv_cache_has_no_room_and_a_stale_report_closes_nothing() -> None:
    endpoint = busy(pending_prefill_tokens=2000)
    endpoint.report = EngineReport(kv_usage=0.94, kv_capacity_tokens=100_000, stale=False)
    assert not is_open(endpoint)
    endpoint.report = msgspec.structs.replace(endpoint.report, stale=True)
    assert is_open(endpoint)


def test_a_prompt_needs_room_for_all_of_it_in_the_kv_cache() -> None:
    half, nearly_full = busy(), busy("b:1")
    half.report = EngineReport(kv_usage=0.5, kv_capacity_tokens=100_000, stale=False)
    nearly_full.report = EngineReport(kv_usage=0.9, kv_capacity_tokens=100_000, stale=False)
    gate = gate_of([half, nearly_full], 500.0)
    assert gate.roomiest(LANE, 0.0, 4_000) == {"a:1", "b:1"}
    assert gate.roomiest(LANE, 0.0, 40_000) == {"a:1"}
    assert gate.is_open(LANE, 1.0, 0.0, 44_000)
    assert not gate.is_open(LANE, 1.0, 0.0, 46_000)
    assert gate.is_open(LANE, 1.0, 0.0, 46_000, {"a:1": 20_000})  # perhaps shared with others that run


def test_a_prompt_larger_than_the_kv_cache_may_go_to_an_idle_engine_that_knows_better() -> None:
    endpoint = make_endpoint("a:1")
    endpoint.report = EngineReport(kv_usage=0.0, kv_capacity_tokens=1_000, stale=False)
    assert gate_of([endpoint], 500.0).is_open(LANE, 1.0, 0.0, 2_000)


def test_a_prompt_that_an_engine_could_never_hold_is_refused_there_at_once_and_needs_no_room() -> None:
    endpoint = busy()
    endpoint.report = EngineReport(kv_usage=0.5, kv_capacity_tokens=100_000, stale=False)
    gate = gate_of([endpoint], 500.0)
    assert not gate.is_open(LANE, 1.0, 0.0, 100_000)
    assert gate.is_open(LANE, 1.0, 0.0, 100_001)
    endpoint.max_model_len = 90_000
    assert not gate.is_open(LANE, 1.0, 0.0, 90_000)
    assert gate.is_open(LANE, 1.0, 0.0, 90_001)
    endpoint.report = msgspec.structs.replace(endpoint.report, kv_usage=0.95)
    assert not gate.is_open(LANE, 1.0, 0.0, 90_001)


def test_an_engine_that_has_just_refused_has_no_room_for_a_second() -> None:
    endpoint = busy()
    endpoint.refused(10.0)
    assert not is_open(endpoint, now_s=10.5)
    assert is_open(endpoint, now_s=11.0)


def test_the_bound_follows_the_usual_prefill_where_none_is_configured() -> None:
    gate = gate_of([busy()])
    assert gate.bound_ms("m") == 1000.0
    for _ in range(1000):
        gate.began("m", 2000.0)
    assert gate.bound_ms("m") == 8000.0
    assert gate.bound_ms("another") == 1000.0


def test_a_prompt_that_no_engine_answered_was_no_usual_one() -> None:
    gate = gate_of([busy()])
    for _ in range(1000):
        gate.began("m", 2000.0)
    gate.began("m", 1e6)
    gate.refused("m", 1e6)
    assert gate.bound_ms("m") == pytest.approx(8000.0)


def least_wait_that_closes_ms(gate: Gate, share: float, *, gives_way: bool = False) -> float:
    """What must wait for prefill at the only endpoint, to the millisecond."""
    (endpoint,) = gate._router.pool.endpoints
    at_ms = 1
    while True:
        carries(endpoint, pending_prefill_tokens=10 * at_ms)
        if not gate.is_open(LANE, share, 0.0, gives_way=gives_way):
            return at_ms - 1
        at_ms += 1


def test_a_level_that_gives_way_keeps_an_engine_busy_and_no_more() -> None:
    gate = gate_of([busy()])
    assert least_wait_that_closes_ms(gate, 0.8) == 800
    assert least_wait_that_closes_ms(gate, 0.8, gives_way=True) == 80
    for _ in range(1000):
        gate.began("m", 2000.0)
    assert least_wait_that_closes_ms(gate, 0.8) == 6400
    assert least_wait_that_closes_ms(gate, 0.8, gives_way=True) == 1600


def computes(endpoint: Endpoint, share: float, until_s: float) -> None:
    """Prompts that took this share of the engine's time until now, and are done."""
    for second in range(int(until_s)):
        ticket = Ticket(endpoint, 1, 1)
        endpoint.prefills.expect(ticket, 1e3 * share, float(second))
        ticket.release()


def test_a_level_that_gives_way_begins_at_a_computing_engine_where_half_of_its_kv_cache_is_free() -> None:
    endpoint = busy()
    gate = gate_of([endpoint], 500.0)
    computes(endpoint, 0.5, 60.0)
    endpoint.report = EngineReport(kv_usage=0.37, kv_capacity_tokens=100_000, stale=False)
    assert gate.is_open(LANE, 0.8, 60.0, 38_000, gives_way=True)
    assert not gate.is_open(LANE, 0.8, 60.0, 40_000, gives_way=True)
    endpoint.report = msgspec.structs.replace(endpoint.report, kv_usage=0.39)
    assert gate.is_open(LANE, 0.8, 60.0, 36_000)
    assert not gate.is_open(LANE, 0.8, 60.0, gives_way=True)


def test_a_kv_cache_full_of_answers_at_an_engine_that_computes_little_holds_no_level_back() -> None:
    endpoint = busy()
    gate = gate_of([endpoint], 500.0)
    computes(endpoint, 0.2, 60.0)
    endpoint.report = EngineReport(kv_usage=0.7, kv_capacity_tokens=100_000, stale=False)
    assert gate.is_open(LANE, 0.8, 60.0, gives_way=True)
    endpoint.report = msgspec.structs.replace(endpoint.report, kv_usage=0.77)
    assert not gate.is_open(LANE, 0.8, 60.0, gives_way=True)


def test_a_configured_bound_below_the_usual_prefill_holds_for_every_level() -> None:
    gate = gate_of([busy()], 500.0)
    gate.began("m", 2000.0)
    assert least_wait_that_closes_ms(gate, 0.8, gives_way=True) == 400


def test_a_request_costs_its_prefill_and_its_share_of_the_steps() -> None:
    alone = make_endpoint("a:1", prefill_ms_per_token=0.1, decode_ms_per_token=10.0)
    in_a_batch = make_endpoint("b:1", prefill_ms_per_token=0.1, decode_ms_per_token=10.0, inflight_requests=20)
    request = msgspec.structs.replace(FACTS, max_output_tokens=100)
    assert engine_ms(alone, request, 400) == (60.0 + 1000.0, 60.0)
    took_ms, _ = engine_ms(in_a_batch, request, 400)
    assert 100.0 < took_ms < 200.0


def test_several_answers_share_steps_and_cost_more_than_one() -> None:
    alone = make_endpoint("a:1", prefill_ms_per_token=0.1, decode_ms_per_token=10.0)
    one = msgspec.structs.replace(FACTS, max_output_tokens=100)
    took_ms, _ = engine_ms(alone, msgspec.structs.replace(one, answers=8), 0)
    assert 1000.0 < took_ms - 100.0 < 8 * 1000.0


def test_the_choice_is_among_those_with_room_else_among_those_that_are_not_full() -> None:
    waits, full, free = busy("a:1", pending_prefill_tokens=9000), busy("b:1"), busy("c:1")
    full.refused(0.0)
    gate = gate_of([waits, full, free], 500.0)
    assert gate.roomiest(LANE, 0.5) == {"c:1"}
    carries(free, pending_prefill_tokens=9000)
    assert gate.roomiest(LANE, 0.5) == {"a:1", "c:1"}
    for endpoint in (waits, free):
        endpoint.refused(0.0)
    assert gate.roomiest(LANE, 0.5) == frozenset()


def test_requests_that_the_engine_reports_as_waiting_count_though_their_prefills_should_be_done() -> None:
    endpoint = busy()
    endpoint.report = EngineReport(waiting_requests=3, stale=False)
    gate = gate_of([endpoint], 500.0)
    assert gate.is_open(LANE, 1.0, 0.0)
    gate.began("m", 200.0)
    assert not gate.is_open(LANE, 1.0, 0.0)


def test_what_was_just_sent_does_not_count_against_its_own_room() -> None:
    endpoint = make_endpoint("a:1", inflight_requests=2, pending_prefill_tokens=9000, prefill_ms_per_token=0.1)
    gate = gate_of([endpoint], 500.0)
    assert not gate.has_room(endpoint, "m", 0.0)
    assert gate.has_room(endpoint, "m", 0.0, own=Load(1, 8000, 8000))
