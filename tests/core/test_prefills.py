"""When prefills should be done: by estimate, and as the engine's own reports correct it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.endpoint import Endpoint
from fairlead.core.ledger import Ticket
from fairlead.core.load import Load
from fairlead.core.prefills import BUSY_OVER_S, TRUST_S
from fairlead.core.reported import EngineReport, following
from tests.core.world import make_endpoint


def expecting(endpoint: Endpoint, tokens: int, prefill_ms: float, now_s: float) -> Ticket:
    ticket = Ticket(endpoint, tokens, tokens)
    endpoint.prefills.expect(ticket, prefill_ms, now_s)
    return ticket


def test_a_prefill_whose_end_is_not_seen_counts_until_it_is_due() -> None:
    endpoint = make_endpoint("a:1", "m")
    expecting(endpoint, 100, 1000.0, now_s=0.0)
    expecting(endpoint, 30, 500.0, now_s=0.0)
    pending = []
    for now_s in (0.9, 1.1, 1.6):
        endpoint.prefills.settle(now_s)
        pending.append(endpoint.load.pending_prefill_tokens)
    assert pending == [130, 30, 0]


def test_a_prefill_on_an_engine_that_has_none_starts_at_once() -> None:
    endpoint = make_endpoint("a:1", "m")
    expecting(endpoint, 100, 60_000.0, now_s=0.0).release()
    endpoint.prefills.settle(1.0)
    expecting(endpoint, 30, 500.0, now_s=1.0)
    endpoint.prefills.settle(1.6)
    assert endpoint.load.pending_prefill_tokens == 0


def test_the_prompt_under_way_is_the_first_whose_prefill_is_not_done() -> None:
    endpoint = make_endpoint("a:1", "m")
    assert endpoint.prefills.under_way_tokens() == 0
    early = expecting(endpoint, 100, 10_000.0, now_s=0.0)
    expecting(endpoint, 30, 500.0, now_s=0.0)
    assert endpoint.prefills.under_way_tokens() == 100
    early.prefilled()
    assert endpoint.prefills.under_way_tokens() == 30


def test_a_first_token_that_came_early_lets_the_next_prefill_start_early() -> None:
    endpoint = make_endpoint("a:1", "m")
    early = expecting(endpoint, 100, 10_000.0, now_s=0.0)
    expecting(endpoint, 30, 500.0, now_s=0.0)
    early.prefilled()
    endpoint.prefills.settle(1.0)
    endpoint.prefills.settle(1.6)
    assert endpoint.load.pending_prefill_tokens == 0


def test_what_the_engine_does_not_call_waiting_is_prefilled_but_for_one_under_way() -> None:
    endpoint = make_endpoint("a:1", "m")
    for _ in range(5):
        expecting(endpoint, 10, 60_000.0, now_s=0.0)
    endpoint.prefills.reported(2, known_s=0.5, now_s=1.0)
    assert endpoint.load.pending_prefill_tokens == 30


def test_requests_that_the_report_cannot_know_of_still_wait() -> None:
    endpoint = make_endpoint("a:1", "m")
    for sent_s in (0.0, 0.0, 0.9):
        expecting(endpoint, 10, 60_000.0, now_s=sent_s)
    endpoint.prefills.reported(0, known_s=0.5, now_s=1.0)
    assert endpoint.load.pending_prefill_tokens == 20


def test_what_the_engine_calls_waiting_is_not_prefilled_however_long_ago_it_was_due() -> None:
    endpoint = make_endpoint("a:1", "m")
    for _ in range(4):
        expecting(endpoint, 10, 100.0, now_s=1.0)
    endpoint.prefills.reported(2, known_s=1.0, now_s=1.01)
    endpoint.prefills.settle(1.9)
    assert endpoint.load.pending_prefill_tokens == 20


def test_an_old_report_holds_nothing_back() -> None:
    endpoint = make_endpoint("a:1", "m")
    for _ in range(4):
        expecting(endpoint, 10, 100.0, now_s=1.0)
    endpoint.prefills.reported(2, known_s=1.0, now_s=1.01)
    endpoint.prefills.settle(1.5 + TRUST_S)
    assert endpoint.load.pending_prefill_tokens == 0


def report(waiting: int | None, read_s: float, *, running: int = 0) -> EngineReport:
    return EngineReport(
        waiting_requests=waiting, running_requests=running, read_s=read_s, changed_s=read_s, stale=False
    )


def tell(endpoint: Endpoint, newest: EngineReport) -> None:
    endpoint.reported(following(endpoint.report, newest, stale_s=10.0))


def test_an_engine_that_has_not_moved_since_its_page_was_read_says_nothing_new() -> None:
    endpoint = make_endpoint("a:1", "m")
    for _ in range(3):
        expecting(endpoint, 10, 60_000.0, now_s=0.5)
    for read_s in (1.0, 2.0, 3.0):
        tell(endpoint, report(0, read_s))
    assert endpoint.load.pending_prefill_tokens == 30


def test_a_report_knows_of_what_was_sent_before_the_step_that_it_shows() -> None:
    endpoint = make_endpoint("a:1", "m")
    for sent_s in (0.5, 0.5, 1.9, 1.9):
        expecting(endpoint, 10, 60_000.0, now_s=sent_s)
    tell(endpoint, report(0, 1.0))
    tell(endpoint, report(0, 1.5, running=2))
    tell(endpoint, report(0, 2.0, running=3))
    assert endpoint.load.pending_prefill_tokens == 30


def test_requests_that_wait_there_for_other_routers_are_not_ours() -> None:
    endpoint = make_endpoint("a:1", "m")
    for _ in range(4):
        expecting(endpoint, 10, 60_000.0, now_s=0.0)
    tell(endpoint, report(2, 0.5, running=14))
    tell(endpoint, report(2, 1.0, running=13))
    tell(endpoint, report(2, 1.5, running=14))  # four of ours among sixteen
    assert endpoint.load.pending_prefill_tokens == 10


STEP = st.tuples(st.sampled_from(["send", "end", "first token", "told", "settle"]), st.integers(0, 9))


@given(st.lists(STEP, max_size=80))
def test_whatever_happens_no_more_wait_than_the_engine_says_and_all_ends_at_zero(steps: list[tuple[str, int]]) -> None:
    endpoint, now_s = make_endpoint("a:1", "m"), 0.0
    tickets: list[Ticket] = []
    for step, number in steps:
        now_s += 0.3
        if step == "send":
            tickets.append(expecting(endpoint, 1 + number, 400.0 * number, now_s))
        elif step == "told":
            endpoint.prefills.reported(number, now_s, now_s)
            assert sum(ticket.awaits_prefill for ticket in tickets) <= number + 1
        elif step == "settle":
            endpoint.prefills.settle(now_s)
        elif number < len(tickets):
            (tickets[number].release if step == "end" else tickets[number].prefilled)()
        assert endpoint.load.pending_prefill_tokens >= 0
    for ticket in tickets:
        ticket.release()
    assert (endpoint.load.pending_prefill_tokens, endpoint.load.decoding_requests, endpoint.load.inflight_requests) == (
        0,
        0,
        0,
    )


@given(st.floats(0.1, 2.0), st.floats(0.01, 0.9), st.integers(1, 500))
def test_the_share_of_time_that_prompts_take_is_that_of_those_sent_lately(
    every_s: float, share: float, count: int
) -> None:
    endpoint = make_endpoint("a:1", "m")
    for number in range(1, count + 1):
        expecting(endpoint, 1, 1e3 * share * every_s, now_s=number * every_s).release()
    busy = endpoint.prefills.busy_share((count + 1) * every_s)
    if count * every_s > 5:
        assert busy == pytest.approx(share, rel=every_s / 5 + 0.05)
    assert endpoint.prefills.busy_share((count + 1) * every_s + 10 * BUSY_OVER_S) < 1e-3


def test_an_engine_is_busy_with_its_first_prompt_for_as_long_as_nothing_else_is_known_of_it() -> None:
    endpoint = make_endpoint("a:1", "m")
    expecting(endpoint, 1, 400.0, now_s=7.0)
    assert endpoint.prefills.busy_share(7.0) == 0
    assert endpoint.prefills.busy_share(7.1) > 1
    assert endpoint.prefills.busy_share(11.0) == pytest.approx(0.1, rel=0.1)


def test_an_engine_that_was_sent_nothing_computes_nothing() -> None:
    assert make_endpoint("a:1", "m").prefills.busy_share(5.0) == 0


def test_prompts_that_other_sidecars_sent_keep_an_engine_busy_too() -> None:
    """They report what waits: when it grows, something was sent, and when it falls, something was computed."""
    alone, shared = make_endpoint("a:1", "m"), make_endpoint("b:1", "m")
    prefill_ms = alone.speed.prefill_ms_per_token
    for second in range(60):
        expecting(alone, 4000, 4000 * prefill_ms, float(second)).release()
        if second % 2:
            expecting(shared, 4000, 4000 * prefill_ms, float(second)).release()
        else:
            shared.peers_reported(Load(pending_prefill_tokens=4000), float(second))
            shared.peers_reported(Load(), second + 0.5)
    assert shared.prefills.busy_share(60.0) == pytest.approx(alone.prefills.busy_share(60.0))
    assert shared.prefills.busy_share(60.0) == pytest.approx(4 * prefill_ms, rel=0.05)
