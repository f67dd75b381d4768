"""Prefills whose end will be seen, and those presumed done that an engine says it has not started."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.endpoint import Endpoint
from fairlead.core.in_flight import InFlight
from fairlead.core.ledger import Ticket
from fairlead.core.load import Load
from tests.core.world import World, make_endpoint, request

LONG_MS = 60_000.0


def expecting(endpoint: Endpoint, tokens: int, prefill_ms: float, now_s: float, *, watched: bool = False) -> Ticket:
    ticket = Ticket(endpoint, tokens, tokens)
    ticket.is_watched = watched
    endpoint.prefills.expect(ticket, prefill_ms, now_s)
    return ticket


def pending(endpoint: Endpoint) -> int:
    return endpoint.load.pending_prefill_tokens


def test_a_watched_prefill_counts_until_its_first_token_is_seen_however_long_ago_it_was_due() -> None:
    endpoint = make_endpoint("a:1", "m")
    ticket = expecting(endpoint, 100, 10.0, now_s=0.0, watched=True)
    endpoint.prefills.settle(500.0)
    assert pending(endpoint) == 100
    ticket.prefilled()
    endpoint.prefills.seen(ticket, 500.0)
    assert pending(endpoint) == 0


def test_what_was_sent_behind_a_watched_prefill_waits_as_long() -> None:
    endpoint = make_endpoint("a:1", "m")
    first = expecting(endpoint, 100, 10.0, now_s=0.0, watched=True)
    expecting(endpoint, 30, 500.0, now_s=0.0)
    endpoint.prefills.settle(500.0)
    assert pending(endpoint) == 130
    first.prefilled()
    endpoint.prefills.seen(first, 500.0)
    assert pending(endpoint) == 30
    endpoint.prefills.settle(500.4)
    assert pending(endpoint) == 30  # it is under way since then
    endpoint.prefills.settle(500.6)
    assert pending(endpoint) == 0


def test_a_watched_prefill_that_is_overdue_is_not_looked_at_for_each_decision() -> None:
    endpoint = make_endpoint("a:1", "m")
    expecting(endpoint, 100, 10.0, now_s=0.0, watched=True)
    endpoint.prefills.settle(500.0)
    assert 500.0 < endpoint.prefills.due_s < 501.0


def test_a_watched_prefill_that_ends_without_an_answer_holds_nobody_back() -> None:
    endpoint = make_endpoint("a:1", "m")
    expecting(endpoint, 100, 10.0, now_s=0.0, watched=True).release()
    expecting(endpoint, 30, 500.0, now_s=0.0)
    endpoint.prefills.settle(0.1)
    endpoint.prefills.settle(0.7)
    assert pending(endpoint) == 0


def test_when_a_first_token_is_seen_what_was_sent_before_it_is_computed_unless_it_is_watched() -> None:
    endpoint = make_endpoint("a:1", "m")
    expecting(endpoint, 1, LONG_MS, now_s=0.0)
    expecting(endpoint, 10, LONG_MS, now_s=0.0, watched=True)
    expecting(endpoint, 100, LONG_MS, now_s=0.0)
    seen = expecting(endpoint, 1_000, LONG_MS, now_s=0.0, watched=True)
    expecting(endpoint, 10_000, LONG_MS, now_s=0.0)
    seen.prefilled()
    endpoint.prefills.seen(seen, 1.0)
    assert pending(endpoint) == 10_010


def test_an_engine_that_has_started_a_watched_prefill_may_still_compute_it() -> None:
    endpoint = make_endpoint("a:1", "m")
    for tokens in (1, 10, 100):
        expecting(endpoint, tokens, LONG_MS, now_s=0.0, watched=tokens == 10)
    endpoint.prefills.reported(0, known_s=0.5, now_s=1.0)
    assert pending(endpoint) == 110  # the last may be under way


def test_prefills_that_are_presumed_done_wait_again_where_the_engine_says_so() -> None:
    endpoint = make_endpoint("a:1", "m")
    for tokens in (1, 10, 100, 1_000):
        expecting(endpoint, tokens, 10.0, now_s=0.0)
    endpoint.prefills.settle(1.0)
    assert endpoint.load == Load(4, 1_111, 0, 4)
    endpoint.prefills.reported(2, known_s=0.5, now_s=1.0)
    attended = 1_000**2 // 2 + 100**2 // 2
    assert endpoint.load == Load(4, 1_111, 1_100, 2, attended)
    assert (endpoint.prefilled_tokens, endpoint.prefilled_attended_tokens) == (11, 50)


def test_prefills_that_wait_again_are_held_and_become_due_like_any_others() -> None:
    endpoint = make_endpoint("a:1", "m")
    for tokens in (10, 100):
        expecting(endpoint, tokens, 500.0, now_s=0.0)
    endpoint.prefills.settle(2.0)
    endpoint.prefills.reported(2, known_s=1.5, now_s=2.0)
    endpoint.prefills.settle(2.9)
    assert pending(endpoint) == 110
    endpoint.prefills.reported(0, known_s=2.5, now_s=2.95)
    assert pending(endpoint) == 100


@pytest.mark.parametrize("how", ["seen", "ended", "sent later"])
def test_no_prefill_waits_again_that(how: str) -> None:
    endpoint = make_endpoint("a:1", "m")
    ticket = expecting(endpoint, 100, 10.0, now_s=0.7 if how == "sent later" else 0.0)
    endpoint.prefills.settle(1.0)
    if how == "seen":
        ticket.prefilled()
    elif how == "ended":
        ticket.release()
    endpoint.prefills.reported(5, known_s=0.5, now_s=1.0)
    assert pending(endpoint) == 0


def test_a_count_of_those_that_came_since_the_last_step_takes_nothing_back() -> None:
    """The engine counts two that wait; both may be the ones that were sent after the step that the report shows."""
    endpoint = make_endpoint("a:1", "m")
    expecting(endpoint, 10, 10.0, now_s=0.0)
    endpoint.prefills.settle(0.5)
    for _ in range(2):
        expecting(endpoint, 100, LONG_MS, now_s=0.9)
    endpoint.prefills.reported(2, known_s=0.8, now_s=1.0)
    assert pending(endpoint) == 200


def test_what_is_kept_of_prefills_that_are_presumed_done_is_bounded_by_those_in_flight() -> None:
    endpoint = make_endpoint("a:1", "m")
    expecting(endpoint, 10, 1.0, now_s=0.0)  # it never ends
    for number in range(5_000):
        ticket = expecting(endpoint, 10, 1.0, now_s=float(number))
        endpoint.prefills.settle(number + 0.5)
        ticket.release()
    assert len(endpoint.prefills._presumed) < 100


STEP = st.tuples(
    st.sampled_from(["send", "send watched", "end", "first token", "told", "settle", "look away"]), st.integers(0, 9)
)


@given(st.lists(STEP, max_size=80))
def test_whatever_happens_a_watched_prefill_is_never_presumed_done_and_all_ends_at_zero(
    steps: list[tuple[str, int]],
) -> None:
    endpoint, now_s = make_endpoint("a:1", "m"), 0.0
    tickets: list[Ticket] = []
    seen: set[int] = set()
    for step, number in steps:
        now_s += 0.3
        if step.startswith("send"):
            tickets.append(expecting(endpoint, 1 + number, 400.0 * number, now_s, watched=step == "send watched"))
        elif step == "told":
            endpoint.prefills.reported(number, now_s - 0.2, now_s)
        elif step == "settle":
            endpoint.prefills.settle(now_s)
        elif number < len(tickets):
            ticket = tickets[number]
            if step == "look away":
                ticket.is_watched = False
            elif step == "end":
                ticket.release()
            else:
                seen.add(number)
                ticket.prefilled()
                endpoint.prefills.seen(ticket, now_s)
        alive = [(number, ticket) for number, ticket in enumerate(tickets) if ticket.endpoint is not None]
        assert all(ticket.awaits_prefill for number, ticket in alive if ticket.is_watched and number not in seen)
        assert not any(ticket.awaits_prefill for number, ticket in alive if number in seen)
        assert pending(endpoint) == sum(ticket.pending_tokens for _, ticket in alive)
        assert endpoint.load.decoding_requests == sum(not ticket.awaits_prefill for _, ticket in alive)
    for ticket in tickets:
        ticket.release()
    assert endpoint.load == Load()


class Sent:
    """A stream that was sent at 0 to one of two endpoints, to its `first`."""

    def __init__(self) -> None:
        self.world = World("fairlead")
        self.world.endpoint("a:1")
        self.world.endpoint("b:1")
        in_flight = self.world.router.admit(request(tokens=1_000), now_s=0.0)
        assert isinstance(in_flight, InFlight)
        self.in_flight, self.first = in_flight, in_flight.address
        self.other = "b:1" if self.first == "a:1" else "a:1"
        in_flight.sent(in_flight.request, 0.0, streams=True)

    def served(self, address: str, now_s: float = 0.1, *, watched: bool = False) -> None:
        self.in_flight.served(address, 200, now_s, in_one_piece=False)
        if watched:
            self.in_flight.watch()

    def pending(self, address: str, now_s: float) -> int:
        endpoint = self.world.router.pool.by_address[address]
        endpoint.prefills.settle(now_s)
        return pending(endpoint)


def test_a_stream_has_no_first_token_before_its_headers() -> None:
    stream = Sent()
    assert stream.pending(stream.first, 100.0) == 1_000
    stream.served(stream.first, 100.0)
    assert stream.pending(stream.first, 100.0) == 0  # nobody will see its first token, and it was due long ago


def test_a_stream_that_is_watched_has_its_first_token_when_it_is_seen() -> None:
    stream = Sent()
    stream.served(stream.first, watched=True)
    assert stream.pending(stream.first, 100.0) == 1_000
    stream.in_flight.first_token(100.0)
    assert stream.pending(stream.first, 100.0) == 0


def test_a_stream_that_shows_no_tokens_after_all_is_estimated() -> None:
    stream = Sent()
    stream.served(stream.first, watched=True)
    stream.in_flight.look_away()
    assert stream.pending(stream.first, 100.0) == 0


def test_a_prompt_that_is_served_elsewhere_waits_there_and_no_longer_where_it_was_sent() -> None:
    stream = Sent()
    stream.served(stream.other, 50.0)
    assert (stream.pending(stream.first, 50.0), stream.pending(stream.other, 50.0)) == (0, 1_000)
    assert stream.pending(stream.other, 51.0) == 0  # it is estimated from when it went there


def test_a_prompt_that_was_served_elsewhere_holds_nobody_back_where_it_was_sent() -> None:
    stream = Sent()
    stream.served(stream.other, watched=True)
    assert isinstance(stream.world.router.admit(request(tokens=500), [stream.first], now_s=0.2), InFlight)
    assert stream.pending(stream.first, 100.0) == 0
