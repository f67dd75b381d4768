"""The ledger releases exactly what it took."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.endpoint import Endpoint
from fairlead.core.ledger import Ticket
from tests.core.world import make_endpoint


def load(endpoint: Endpoint) -> tuple[int, ...]:
    e = endpoint
    return (
        e.load.inflight_requests,
        e.load.inflight_prompt_tokens,
        e.load.pending_prefill_tokens,
        e.load.decoding_requests,
        e.load.pending_attended_tokens,
        e.load.awaited_requests,
    )


def test_a_ticket_takes_its_load_at_once() -> None:
    endpoint = make_endpoint("a:1", "m")
    Ticket(endpoint, 100, 40)
    assert load(endpoint) == (1, 100, 40, 0, 3200, 0)


def test_after_the_first_token_nothing_of_the_prompt_waits() -> None:
    endpoint = make_endpoint("a:1", "m")
    Ticket(endpoint, 100, 40).prefilled()
    assert load(endpoint) == (1, 100, 0, 1, 0, 0)


def test_a_request_whose_prompt_another_computes_is_awaited_until_that_is_done() -> None:
    endpoint = make_endpoint("a:1", "m")
    ticket = Ticket(endpoint, 100, 0, awaits_other=True)
    assert load(endpoint) == (1, 100, 0, 0, 0, 1)
    assert endpoint.load.present_requests == 0
    ticket.arrived()
    ticket.arrived()
    assert load(endpoint) == (1, 100, 0, 0, 0, 0)
    assert endpoint.load.present_requests == 1


def test_an_awaited_request_that_ends_leaves_nothing() -> None:
    endpoint = make_endpoint("a:1", "m")
    Ticket(endpoint, 100, 0, awaits_other=True).release()
    assert load(endpoint) == (0, 0, 0, 0, 0, 0)


def test_what_is_computed_there_after_all_is_awaited_no_more() -> None:
    endpoint = make_endpoint("a:1", "m")
    Ticket(endpoint, 100, 0, awaits_other=True).recomputes(40)
    assert load(endpoint) == (1, 100, 40, 0, 3200, 0)


def test_a_moved_ticket_weighs_on_its_new_endpoint_only() -> None:
    old, new = make_endpoint("a:1", "m"), make_endpoint("b:1", "m")
    ticket = Ticket(old, 100, 40)
    ticket.move(new)
    assert (load(old), load(new)) == ((0, 0, 0, 0, 0, 0), (1, 100, 40, 0, 3200, 0))


STEPS = ["take", "await", "arrived", "prefilled", "move", "release"]
STEP = st.tuples(st.integers(0, 7), st.sampled_from(STEPS), st.integers(0, 2))


@given(
    st.lists(STEP, max_size=60),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=8, max_size=8),
)
def test_any_interleaving_never_goes_below_zero_and_ends_at_zero(
    steps: list[tuple[int, str, int]], sizes: list[tuple[int, int]]
) -> None:
    endpoints = [make_endpoint(f"{name}:1", "m") for name in "abc"]
    tickets: dict[int, Ticket] = {}
    for number, step, where in steps:
        if step in ("take", "await"):
            if number not in tickets:
                tickets[number] = Ticket(endpoints[where], *sizes[number], awaits_other=step == "await")
        elif number in tickets:
            ticket = tickets[number]
            if step == "move":
                ticket.move(endpoints[where])
            elif step == "prefilled":
                ticket.prefilled()
            elif step == "arrived":
                ticket.arrived()
            else:
                ticket.release()
        assert min(min(load(endpoint)) for endpoint in endpoints) >= 0
    for ticket in tickets.values():
        ticket.release()
    assert [load(endpoint) for endpoint in endpoints] == [(0, 0, 0, 0, 0, 0)] * 3
