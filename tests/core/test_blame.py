"""Who is at fault where a request fails: one that fails wherever it goes takes no engine from the others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.core.facts import RequestFacts, Turn
from fairlead.core.health import SILENCE_S
from fairlead.core.in_flight import InFlight
from fairlead.core.streak import FIRST_COOL_DOWN_S, REQUEST_FAILURES_TO_EJECT, Streak
from tests.core.world import World, request

MANY = 4 * REQUEST_FAILURES_TO_EJECT
ADDRESSES = ("a:1", "b:1", "c:1")


def pool_of_three() -> World:
    """Each request has three attempts, one at each engine."""
    return pool_of(*ADDRESSES)


def pool_of(*addresses: str) -> World:
    world = World("round_robin")
    for address in addresses:
        world.endpoint(address)
    return world


def two_that_serve_others() -> World:
    world = pool_of("a:1", "b:1")
    for number in range(2):
        is_served(world, number, 1.0)
    return world


def prompt(number: int, tokens: int = 1000) -> RequestFacts:
    return msgspec.structs.replace(request("m", tokens=tokens), turn=Turn(number, 0, 0, 0), cause=number)


def sent(world: World, facts: RequestFacts, now_s: float) -> InFlight:
    in_flight = world.router.admit(facts, now_s=now_s)
    assert isinstance(in_flight, InFlight)
    in_flight.sent(facts, now_s)
    return in_flight


def fails_everywhere(world: World, number: int, now_s: float, code: int = 500) -> None:
    in_flight = sent(world, prompt(number), now_s)
    in_flight.served(in_flight.decision.addresses[-1], code, now_s, in_one_piece=True)
    in_flight.ended(now_s)


def is_served(world: World, number: int, now_s: float) -> None:
    in_flight = sent(world, prompt(number), now_s)
    in_flight.served(in_flight.address, 200, now_s, in_one_piece=True)
    in_flight.ended(now_s)


def ejected(world: World) -> set[str]:
    return {e.address for e in world.router.pool.endpoints if not e.health.healthy}


def test_a_prompt_that_fails_at_each_engine_and_is_sent_again_and_again_ejects_none() -> None:
    world = pool_of_three()
    for number in range(MANY):
        fails_everywhere(world, 7, float(number))
    assert ejected(world) == set()


def test_nor_does_it_eject_one_that_is_on_trial() -> None:
    streak = Streak()
    for cause in range(REQUEST_FAILURES_TO_EJECT):
        streak.failed(0.0, cause)
    streak.look(FIRST_COOL_DOWN_S)
    streak.failed(FIRST_COOL_DOWN_S, 0)
    assert not streak.is_out
    streak.failed(FIRST_COOL_DOWN_S, 99)
    assert streak.is_out


def test_an_engine_at_which_all_prompts_fail_is_out_again_after_each_trial_however_many_failed_before() -> None:
    streak = Streak()
    for cause in range(1000):
        streak.failed(0.0, cause)
    streak.look(FIRST_COOL_DOWN_S)
    streak.failed(FIRST_COOL_DOWN_S, 1000)
    assert (streak.is_out, streak.outs) == (True, 2)
    assert len(streak._causes) < 100


def test_different_prompts_that_fail_at_engines_which_serve_others_eject_none() -> None:
    world = pool_of_three()
    for number in range(3):
        is_served(world, number, 1.0)
    for number in range(MANY):  # at once, so that nothing else is served in between
        fails_everywhere(world, 100 + number, 2.0)
    assert ejected(world) == set()


def test_nor_where_the_gateway_comes_back_to_the_first_of_two_as_it_has_three_attempts() -> None:
    world = two_that_serve_others()
    for number in range(MANY):
        in_flight = sent(world, prompt(100 + number), 2.0)
        in_flight.served(in_flight.address, 500, 2.0, in_one_piece=True, attempts=3)
        in_flight.ended(2.0)
    assert ejected(world) == set()


def test_an_engine_that_alone_was_asked_is_at_fault_whoever_else_serves() -> None:
    world = two_that_serve_others()
    for number in range(MANY):
        in_flight = sent(world, prompt(100 + number), 2.0)
        if in_flight.address == "a:1":
            in_flight.served("a:1", 500, 2.0, in_one_piece=True)
        in_flight.ended(2.0)
    assert "a:1" in ejected(world)


def test_engines_that_serve_nobody_are_ejected_one_failure_of_each_request_at_a_time() -> None:
    world = pool_of_three()
    for number in range(3 * REQUEST_FAILURES_TO_EJECT - 1):
        fails_everywhere(world, number, 1.0)
    assert len(ejected(world)) == 2
    fails_everywhere(world, 99, 1.0)
    assert ejected(world) == set(ADDRESSES)


def test_a_request_that_another_engine_served_shows_that_the_first_has_failed_whatever_it_asked() -> None:
    world = World()
    world.endpoint("a:1")
    world.endpoint("b:1", rtt_ms=100.0)
    for _ in range(REQUEST_FAILURES_TO_EJECT):
        in_flight = sent(world, prompt(7), 1.0)
        in_flight.served("b:1", 200, 1.0, in_one_piece=True)
        in_flight.ended(1.0)
    assert ejected(world) == {"a:1"}


@pytest.mark.parametrize("code", [400, 413, 422, 429])
def test_a_request_that_the_last_engine_calls_wrong_or_has_no_room_for_is_no_fault_of_the_others(code: int) -> None:
    world = pool_of_three()
    for number in range(3):
        is_served(world, number, 1.0)
    for number in range(MANY):
        fails_everywhere(world, 100 + number, 2.0, code)
    assert not any(endpoint.health.doubtful for endpoint in world.router.pool.endpoints)


def test_where_nothing_else_can_be_tried_different_prompts_in_a_row_eject_and_the_same_one_does_not() -> None:
    world = World()
    world.endpoint("a:1")
    for _ in range(MANY):
        fails_everywhere(world, 7, 1.0)
    assert ejected(world) == set()
    for number in range(REQUEST_FAILURES_TO_EJECT):
        fails_everywhere(world, 100 + number, 1.0)
    assert ejected(world) == {"a:1"}


def test_a_prompt_that_an_engine_has_answered_is_not_at_fault_however_often_it_is_sent() -> None:
    world = World("round_robin")
    for address in ("a:1", "b:1"):
        world.endpoint(address)
    world.router.fallbacks = 0
    for _ in range(2 * REQUEST_FAILURES_TO_EJECT):
        in_flight = sent(world, prompt(7), 1.0)
        in_flight.served(in_flight.address, 500 if in_flight.address == "a:1" else 200, 1.0, in_one_piece=True)
        in_flight.ended(1.0)
        if ejected(world):
            break
    assert ejected(world) == {"a:1"}


@pytest.mark.parametrize("unanswered", [False, True])
def test_a_busy_engine_whose_connections_break_has_failed_and_one_that_says_503_itself_is_full(
    *, unanswered: bool
) -> None:
    world = World()
    world.endpoint("a:1")
    is_served(world, 0, 1.0)
    sent(world, prompt(1), 1.0)  # and stays there
    for number in range(REQUEST_FAILURES_TO_EJECT):
        in_flight = sent(world, prompt(100 + number), 2.0)
        in_flight.served("a:1", 503, 2.0, in_one_piece=True, unanswered=unanswered)
        in_flight.ended(2.0)
    assert ejected(world) == ({"a:1"} if unanswered else set())


def test_a_prompt_that_takes_long_by_itself_does_not_show_that_its_engine_hangs() -> None:
    world = World()
    world.endpoint("a:1", prefill_ms_per_token=0.1)
    for number in range(MANY):
        in_flight = sent(world, prompt(number, tokens=200_000), 100.0 * number)  # 20 s
        in_flight.ended(100.0 * number + 2 * SILENCE_S)
    assert ejected(world) == set()
    for number in range(REQUEST_FAILURES_TO_EJECT):
        in_flight = sent(world, prompt(number, tokens=200_000), 10_000.0)
        in_flight.ended(10_000.0 + 7 * SILENCE_S)
    assert ejected(world) == {"a:1"}


PREFILL, DECODE, OTHER = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"


class ByProxy:
    """An engine that computes prompts, two that decode, each with a proxy that asks the first one, and one attempt."""

    def __init__(self) -> None:
        self.world = World()
        same: dict[str, Any] = {"kv_connector": "proxy", "transfer_ms_per_token": 0.001}
        self.prefiller = self.world.endpoint(PREFILL, role="prefill", **same)
        self.decoder, self.other = (self.world.endpoint(each, role="decode", **same) for each in (DECODE, OTHER))
        self.world.router.fallbacks = 0
        self._number = 0

    def ask(self, at: str, code: int, now_s: float) -> bool:
        """A long prompt is sent to the decode engine `at`, which answers `code`; whether it was split."""
        self._number += 1
        facts = msgspec.structs.replace(prompt(self._number, tokens=20_000), may_split=True)
        in_flight = self.world.router.admit(facts, {PREFILL, at}, now_s)
        assert isinstance(in_flight, InFlight)
        was_split = in_flight.hop is not None
        in_flight.prefilled_elsewhere(now_s, ended=False)
        in_flight.sent(facts, now_s)
        in_flight.served(at, code, now_s, in_one_piece=True)
        in_flight.ended(now_s)
        return was_split


@pytest.fixture
def by_proxy(monkeypatch: pytest.MonkeyPatch) -> ByProxy:
    monkeypatch.setattr("fairlead.core.prefill_decode.TRANSFER_SETUP_MS", -1e6)  # a split is always the cheaper way
    return ByProxy()


@pytest.mark.parametrize("code", [500, 502, 503])
def test_a_prefill_engine_whose_prompts_fail_through_the_proxy_is_asked_no_more_and_nobody_is_ejected(
    by_proxy: ByProxy, code: int
) -> None:
    split = [by_proxy.ask(DECODE, code, 1.0) for _ in range(REQUEST_FAILURES_TO_EJECT)]
    assert split == [True] * REQUEST_FAILURES_TO_EJECT
    assert not by_proxy.ask(DECODE, 200, 1.0)
    assert ejected(by_proxy.world) == set()
    assert not by_proxy.decoder.health.doubtful
    by_proxy.prefiller.probed(True, 1.0 + FIRST_COOL_DOWN_S, 3)
    assert by_proxy.ask(DECODE, 200, 1.0 + FIRST_COOL_DOWN_S), "it is tried again"
    assert by_proxy.prefiller.hops.failures == 0


def test_a_decode_engine_that_fails_with_and_without_a_proxy_is_ejected(by_proxy: ByProxy) -> None:
    for _ in range(REQUEST_FAILURES_TO_EJECT):
        assert by_proxy.ask(DECODE, 500, 1.0)
    assert ejected(by_proxy.world) == set()
    assert not by_proxy.ask(DECODE, 500, 1.0)
    assert ejected(by_proxy.world) == {DECODE}


def test_a_decode_engine_is_ejected_where_another_gets_its_prompts_from_the_same_prefill_engine(
    by_proxy: ByProxy,
) -> None:
    for _ in range(REQUEST_FAILURES_TO_EJECT + 2):
        assert by_proxy.ask(DECODE, 500, 1.0)
        assert by_proxy.ask(OTHER, 200, 1.0)
    assert ejected(by_proxy.world) == {DECODE}
