"""Sidecars that do not know of each other's prompts send those that begin alike to the same endpoint."""

from __future__ import annotations

from collections import Counter
from itertools import count
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.api.usage import Usage
from fairlead.core.facts import RequestFacts
from fairlead.core.in_flight import InFlight
from fairlead.core.load import Load
from fairlead.core.policy import Decision
from fairlead.core.pool import FEW
from fairlead.core.rendezvous import OtherRouters, turns_by
from tests.core.world import World, make_endpoint

BLOCK_TOKENS = 128.0
POOLS = pytest.mark.parametrize("endpoints", [8, FEW + 24])  # of those that are looked at one by one, and of those kept


def sidecar(endpoints: int, *, others: bool = True) -> World:
    world = World()
    for number in range(endpoints):
        world.endpoint(f"10.0.0.{number}:8000")
    world.router.others.present = others
    return world


def prompt(*blocks: int) -> RequestFacts:
    tokens = int(len(blocks) * BLOCK_TOKENS)
    return RequestFacts("any", tokens, 100, "en", 0, prefix=blocks, block_tokens=BLOCK_TOKENS)


def sends(world: World, request: RequestFacts) -> Decision:
    """A request that is answered before the next one comes."""
    in_flight = world.router.admit(request)
    assert isinstance(in_flight, InFlight)
    in_flight.sent(request, 0.0)
    in_flight.served(in_flight.address, 200, 1.0, in_one_piece=True)
    in_flight.ended(1.0)
    return in_flight.decision


@POOLS
def test_prompts_that_begin_alike_go_to_one_endpoint_whatever_else_each_sidecar_sent(endpoints: int) -> None:
    sidecars = [sidecar(endpoints) for _ in range(3)]
    own, chosen = count(1000), set()
    for number, world in enumerate(sidecars):
        for _ in range(number):
            sends(world, prompt(next(own), 2))
        chosen.add(sends(world, prompt(7, 8, next(own))).addresses[0])
    assert len(chosen) == 1


@POOLS
def test_so_do_prompts_that_go_on_alike_where_all_endpoints_have_their_beginning(endpoints: int) -> None:
    sidecars = [sidecar(endpoints) for _ in range(2)]
    chosen = set()
    for turns, world in enumerate(sidecars):
        for endpoint in world.router.pool.endpoints:
            world.router.index.insert((1, 2), endpoint.address, 0.0)
        for block in range(turns):
            sends(world, prompt(1, 2, 100 + block))
        chosen.add(sends(world, prompt(1, 2, 3)).addresses[0])
    assert len(chosen) == 1


@POOLS
def test_alone_a_sidecar_takes_turns(endpoints: int) -> None:
    world = sidecar(endpoints, others=False)
    chosen = [sends(world, prompt(7, 8, number)).addresses[0] for number in range(100, 103)]
    assert chosen[1:] == chosen[:1] * 2, "the beginning is cached there"
    assert len({sends(world, prompt(number)).addresses[0] for number in range(200, 200 + endpoints)}) == endpoints


@POOLS
def test_prompts_that_differ_are_spread_evenly(endpoints: int) -> None:
    rng, world = Random(0), sidecar(endpoints)
    chosen = Counter(sends(world, prompt(rng.getrandbits(64))).addresses[0] for _ in range(40 * endpoints))
    assert len(chosen) == endpoints
    assert max(chosen.values()) < 2 * 40


@POOLS
def test_where_the_prompt_chose_among_equals_the_decision_says_so(endpoints: int) -> None:
    world = sidecar(endpoints)
    whys = {sends(world, prompt(number)).why for number in range(100)}
    assert whys == {"rendezvous", "cost"}, "cost where it chose the first of them"


@POOLS
def test_what_is_cached_for_certain_is_worth_more(endpoints: int) -> None:
    world = sidecar(endpoints)
    long = tuple(range(1, 101))
    first = sends(world, prompt(*long)).addresses[0]
    assert {sends(world, prompt(*long, number)).addresses[0] for number in range(200, 230)} == {first}


@given(st.lists(st.integers(0, 6), min_size=8, max_size=8), st.integers(0, 2**64 - 1), st.floats(0, 1))
def test_an_equal_costs_no_more_than_what_others_may_have_computed_there(
    loads: list[int], block: int, cached_share: float
) -> None:
    world = World()
    for number, requests in enumerate(loads):
        world.endpoint(f"10.0.0.{number}:8000", inflight_requests=requests, pending_prefill_tokens=200 * requests)
    others = world.router.others
    others.present = True
    for _ in range(1000):
        others.decided(round(1000 * cached_share), 1000)
    chosen, *rest = world.router.admit(prompt(block, 2, 3)).decision.best  # type: ignore[union-attr]
    best = min([chosen, *rest], key=lambda ranked: ranked.score)
    terms = world.router.policy.explain(best.candidate)
    assert terms is not None
    assert chosen.score <= best.score + max(2.0, 0.5 * cached_share * terms.prefill_ms * 1.001)


@POOLS
def test_a_prompt_that_nobody_has_a_chain_of_takes_turns(endpoints: int) -> None:
    world = sidecar(endpoints)
    assert len({sends(world, prompt()).addresses[0] for _ in range(endpoints)}) == endpoints


def test_an_endpoint_that_joins_takes_prompts_from_all_and_moves_no_other() -> None:
    keys = [Random(0).getrandbits(64) for _ in range(1)] + [Random(n).getrandbits(64) for n in range(1, 9)]
    moved = Counter[tuple[int, int]]()
    for block in range(2000):
        before, after = turns_by(keys[:8], block), turns_by(keys, block)
        if before.index(min(before)) != after.index(min(after)):
            moved[before.index(min(before)), after.index(min(after))] += 1
    assert {to for _, to in moved} == {8}
    assert len(moved) == 8
    assert 150 < sum(moved.values()) < 300  # a ninth of 2,000


# ---- who else is there ----------------------------------------------------------------------------------------------


def looked(others: OtherRouters, times: int = 40, **loads: int) -> OtherRouters:
    endpoint = make_endpoint("a:1", inflight_requests=loads.get("own", 0))
    endpoint.peers_reported(Load(loads.get("peers", 0)), 0.0)
    endpoint.strangers = Load(loads.get("strangers", 0))
    for _ in range(times):
        others.look([endpoint])
    return others


@pytest.mark.parametrize("whose", ["peers", "strangers"])
def test_others_are_there_where_a_share_of_what_is_in_flight_is_theirs(whose: str) -> None:
    assert looked(OtherRouters(), own=10, **{whose: 3}).present
    assert not looked(OtherRouters(), own=100, **{whose: 3}).present


def test_a_report_that_differs_from_our_count_once_makes_nobody() -> None:
    others = looked(OtherRouters(), own=10)
    assert not looked(others, 1, own=10, strangers=5).present


def test_others_that_left_are_not_there_any_more() -> None:
    others = looked(OtherRouters(), own=10, peers=10)
    assert not looked(others, own=10).present


def test_a_pool_without_requests_says_nothing_of_who_uses_it() -> None:
    others = looked(OtherRouters(), own=10, peers=10)
    assert looked(others).present


def heard(others: OtherRouters, *, found: int, answers: int = 200, prompt_tokens: int = 1000) -> OtherRouters:
    """Answers whose engines had `found` tokens more than we sent there, of 800 that we took to be uncached."""
    for _ in range(answers):
        others.answered(prompt_tokens, 200 + found, 200)
    return others


def test_where_engines_say_what_was_cached_others_are_there_if_it_is_more_than_we_sent() -> None:
    assert looked(heard(OtherRouters(), found=200), own=10).present
    assert not looked(heard(OtherRouters(), found=0), own=10, strangers=10).present, "their prompts are not like ours"


def test_a_few_tokens_more_than_expected_are_of_a_template() -> None:
    assert not looked(heard(OtherRouters(), found=40), own=10).present


def test_a_few_answers_do_not_tell() -> None:
    assert looked(heard(OtherRouters(), found=0, answers=7), own=10, peers=10).present


def test_the_chance_is_the_share_of_what_was_to_be_computed_that_was_there() -> None:
    assert heard(OtherRouters(), found=400).chance == pytest.approx(0.5)
    assert heard(OtherRouters(), found=-200).chance == 0.0


def test_after_a_restart_what_was_sent_before_is_soon_known_again() -> None:
    others = heard(OtherRouters(), found=600)
    assert not looked(heard(others, found=0, answers=200), own=10).present


@pytest.mark.parametrize("counted", [0.7, 1.0, 1.4])
def test_tokens_that_we_count_otherwise_than_the_engine_make_no_others(counted: float) -> None:
    world = sidecar(8, others=False)
    request = msgspec.structs.replace(
        prompt(*range(20)), tokens=int(20 * BLOCK_TOKENS * counted), block_tokens=BLOCK_TOKENS * counted
    )
    tokens = int(20 * BLOCK_TOKENS)
    for turn in range(40):
        in_flight = world.router.admit(request, now_s=10.0 * turn)
        assert isinstance(in_flight, InFlight)
        in_flight.sent(request, 10.0 * turn)
        in_flight.served(in_flight.address, 200, 10.0 * turn + 1, in_one_piece=True)
        usage = Usage(prompt_tokens=tokens, cached_tokens=tokens if turn else 0, completion_tokens=5)
        in_flight.ended(10.0 * turn + 1, in_flight.observation(usage, 10.0 * turn + 1, streamed=False))
    assert world.router.others.chance < 0.05


def test_engines_that_say_that_nothing_was_cached_count_from_the_first() -> None:
    """Else only those count that found something, and the chance begins at certainty."""
    world = sidecar(8, others=False)
    for number in range(40):
        request, tokens = prompt(*range(100 * number, 100 * number + 20)), int(20 * BLOCK_TOKENS)
        in_flight = world.router.admit(request)
        assert isinstance(in_flight, InFlight)
        in_flight.sent(request, 0.0)
        in_flight.served(in_flight.address, 200, 1.0, in_one_piece=True)
        usage = Usage(prompt_tokens=tokens, cached_tokens=tokens if number % 4 == 3 else 0, completion_tokens=5)
        in_flight.ended(1.0, in_flight.observation(usage, 1.0, streamed=False))
    assert world.router.others.chance == pytest.approx(0.25, abs=0.1)
