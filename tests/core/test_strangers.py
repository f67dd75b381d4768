"""Requests of routers and clients that we know nothing of: an engine counts them, and so do its costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.endpoint import Endpoint
from fairlead.core.ledger import Ticket
from fairlead.core.load import Load
from fairlead.core.prefills import TRUST_S
from fairlead.core.reported import EngineReport
from fairlead.core.strangers import NOBODY, strangers
from tests.core.world import World, make_endpoint

OURS_TOKENS = 1000.0


def report(read_s: float = 1.0, *, running: int = 0, waiting: int = 0, stale: bool = False) -> EngineReport:
    return EngineReport(
        running_requests=running, waiting_requests=waiting, read_s=read_s, changed_s=read_s, stale=stale
    )


def found(newest: EngineReport, known: int, *, before_s: float = 0.75) -> Load:
    return strangers(report(before_s), newest, known, OURS_TOKENS)


def prefilled(endpoint: Endpoint, tokens: int) -> None:
    ticket = Ticket(endpoint, tokens, tokens)
    ticket.prefilled()
    ticket.release()


def tell(endpoint: Endpoint, *, running: int = 0, waiting: int = 0) -> None:
    """Two pages in a row: one alone does not show how often they come."""
    for read_s in (0.75, 1.0):
        endpoint.reported(report(read_s, running=running, waiting=waiting))


def test_they_are_what_the_engine_has_beyond_what_known_sidecars_sent() -> None:
    assert found(report(running=7), known=3) == Load(4)


@pytest.mark.parametrize("known", [7, 9])
def test_an_engine_that_has_no_more_than_we_sent_has_no_strangers(known: int) -> None:
    assert found(report(running=4, waiting=3), known) == NOBODY


def test_those_that_wait_are_strangers_in_the_same_share_as_all_and_as_long_as_ours() -> None:
    """Eight of ten are strangers', so four of the five that wait."""
    assert found(report(running=5, waiting=5), known=2) == Load(8, pending_prefill_tokens=4000)


def test_of_reports_that_are_rare_nothing_is_believed() -> None:
    crowd = report(9.0, running=5, waiting=5)
    assert found(crowd, known=2, before_s=9.0 - TRUST_S) != NOBODY
    assert found(crowd, known=2, before_s=8.9 - TRUST_S) == NOBODY


def test_a_stale_report_tells_of_nobody() -> None:
    assert found(report(running=9, waiting=9, stale=True), known=0) == NOBODY


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_they_are_never_more_than_the_engine_reports(running: int, waiting: int, known: int) -> None:
    others = found(report(running=running, waiting=waiting), known)
    assert 0 <= others.inflight_requests <= running + waiting
    assert 0 <= others.pending_prefill_tokens <= waiting * OURS_TOKENS


def test_peers_that_share_a_store_are_no_strangers() -> None:
    endpoint = make_endpoint("a:1", "m")
    endpoint.peers_reported(Load(5), 0.0)
    tell(endpoint, running=6)
    assert endpoint.strangers == Load(1)


def test_a_page_that_is_shown_again_says_nothing_of_what_came_since() -> None:
    endpoint = make_endpoint("a:1", "m")
    tell(endpoint, running=6)
    endpoint.take(Load(4))
    endpoint.reported(endpoint.report)
    assert endpoint.strangers == Load(6)


def test_how_long_ours_usually_are_follows_what_is_prefilled() -> None:
    endpoint = make_endpoint("a:1", "m")
    prefilled(endpoint, 1000)
    assert endpoint.usual_prefill_tokens == 1000
    for _ in range(100):
        prefilled(endpoint, 3000)
    assert endpoint.usual_prefill_tokens == pytest.approx(3000, rel=0.01)


def test_a_queue_of_strangers_costs_as_much_as_one_of_ours() -> None:
    """Equal engines, at one of which three strangers' prompts of 1,000 tokens wait."""
    world = World("fairlead", crowd_weight=0.0)
    for address in ("theirs:1", "idle:1"):
        prefilled(world.endpoint(address), 1000)
    crowded = world.router.pool.by_address["theirs:1"]
    tell(crowded, waiting=3)
    decision = world.pick(tokens=1000)
    queue_ms = {ranked.candidate.address: decision.terms(ranked).queue_ms for ranked in decision.best}  # type: ignore[union-attr]
    assert queue_ms == {"idle:1": 0.0, "theirs:1": pytest.approx(3000 * crowded.speed.prefill_ms_per_token)}
    assert decision.addresses[0] == "idle:1"


def test_a_token_that_is_computed_delays_strangers_too_wherever_it_goes() -> None:
    world = World("fairlead", crowd_weight=1.0)
    for address in ("a:1", "b:1"):
        world.endpoint(address)
    before = world.pick(tokens=1000).best[0].score
    for endpoint in world.router.pool.endpoints:
        tell(endpoint, running=4)
    again = world.pick(tokens=1000).best[0]
    assert again.candidate.delayed_requests == 4
    assert again.score == pytest.approx(before + 4 * 1000 * again.candidate.prefill_ms_per_token)
