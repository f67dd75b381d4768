"""One endpoint computes a prompt and another decodes it where that is cheaper, and nothing of either is left behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.candidates import candidates
from fairlead.core.endpoint import Endpoint
from fairlead.core.hop import Hop
from fairlead.core.in_flight import InFlight
from fairlead.core.ledger import Ticket
from fairlead.core.load import Load
from fairlead.core.observation import Observation
from fairlead.core.policy import Refusal
from fairlead.core.prefill_decode import Hops, PrefillChoice, cheapest_split, offers, prefillers
from fairlead.core.reported import EngineIdentity, EngineReport
from fairlead.core.warm_in import ANSWERS, FIRST_REQUESTS
from tests.core.world import World, carries, request

SAFE = EngineIdentity("0.32.0")
LONG, SHORT = 20_000, 20
PREFILL, DECODE = "10.0.0.1:1", "10.0.0.2:1"


def pool(**decoder: Any) -> World:
    """One endpoint of each half; a token takes 0.1 ms to compute, and 0.05 ms to transfer."""
    world = World()
    world.endpoint(PREFILL, role="prefill", kv_connector="nixl", identity=SAFE, transfer_ms_per_token=0.05)
    half: dict[str, Any] = {"role": "decode", "kv_connector": "nixl", "identity": SAFE, "transfer_ms_per_token": 0.05}
    world.endpoint(DECODE, **(half | decoder))
    return world


def busy(world: World, address: str = DECODE, requests: int = 8) -> None:
    carries(world.router.pool.by_address[address], inflight_requests=requests, decoding_requests=requests)


def ask(world: World, tokens: int = LONG, now_s: float = 0.0, **facts: Any) -> InFlight:
    asked = msgspec.structs.replace(request(tokens=tokens), may_split=True, prefix=(1, 2, 3, 4), **facts)
    in_flight = world.router.admit(asked, now_s=now_s)
    assert isinstance(in_flight, InFlight)
    return in_flight


def choice(in_flight: InFlight) -> PrefillChoice:
    assert in_flight.decision.prefill is not None
    return in_flight.decision.prefill


def loads(world: World) -> list[Load]:
    return [endpoint.own for endpoint in world.router.pool.endpoints]


def test_an_endpoint_that_only_prefills_never_answers() -> None:
    world = pool()
    assert {world.pick_and_end() for _ in range(5)} == {DECODE}
    world.router.pool.by_address[DECODE].health.withhold("draining")
    world.router.pool.by_address[DECODE].health.answers = False
    assert isinstance(world.router.admit(request()), Refusal)


def test_a_long_prompt_is_computed_elsewhere_where_it_would_stall_others() -> None:
    world = pool()
    busy(world)
    in_flight = ask(world)
    assert in_flight.decision.addresses == (DECODE,)
    assert in_flight.hop is not None
    assert in_flight.hop.address == PREFILL
    prefill, decode = loads(world)
    assert prefill == Load(1, LONG, LONG, 0, LONG**2 // 2)
    assert decode == Load(1, LONG, 0, awaited_requests=1)


def test_the_terms_are_what_each_way_takes() -> None:
    world = pool()
    busy(world)
    ways = choice(ask(world))
    assert ways.alone.prefill_ms == pytest.approx(0.1 * LONG)
    crowding_ms = 20.0 * 0.015 * 8 * 100  # by as much as others slow its answer, it slows theirs
    assert ways.alone.stall_ms == pytest.approx(8 * 0.1 * LONG + crowding_ms)
    assert ways.alone.transfer_ms == 0
    assert ways.split.prefill_ms == pytest.approx(0.1 * LONG)
    assert ways.split.stall_ms == pytest.approx(crowding_ms * 101 / 100)
    assert ways.split.transfer_ms == pytest.approx(10 + 0.05 * LONG)
    assert ways.split.decode_ms == pytest.approx(ways.alone.decode_ms * 101 / 100)  # one step more
    assert ways.is_split
    assert ways.split.total_ms() < ways.alone.total_ms()


def test_a_prompt_delays_nobody_whose_own_is_still_computed_elsewhere() -> None:
    """In a busy pool these are most of those in flight where prompts are not computed: nothing would ever go there."""
    world = pool()
    busy(world)
    held = [ask(world) for _ in range(3)]
    assert all(each.hop is not None for each in held)
    ways = choice(ask(world))
    crowding_ms = 20.0 * 0.015 * 11 * 100  # they will all be in its batch
    assert ways.alone.stall_ms == pytest.approx(8 * 0.1 * LONG + crowding_ms)
    held[0].prefilled_elsewhere(1.0)
    assert choice(ask(world, now_s=1.0)).alone.stall_ms > ways.alone.stall_ms + 0.1 * LONG * 0.99


@pytest.mark.parametrize("how", ["computed", "failed", "gone"])
def test_a_request_is_awaited_until_its_prompt_is_computed_or_will_not_be(how: str) -> None:
    world = pool()
    busy(world)
    in_flight = ask(world)
    assert loads(world)[1].awaited_requests == 1
    if how == "computed":
        in_flight.prefilled_elsewhere(1.0)
    elif how == "failed":
        in_flight.prefill_failed(1.0, blames="engine")
    else:
        in_flight.withdraw(1.0)
    assert loads(world)[1].awaited_requests == 0
    assert loads(world)[1].inflight_requests == (0 if how == "gone" else 1)


def test_an_engine_is_not_taken_to_have_requests_whose_prompt_another_computes() -> None:
    """Else strangers' requests hide behind them, and its batch is believed to be larger than it is."""
    world = pool()
    busy(world)
    for _ in range(3):
        ask(world)
    decoder = world.router.pool.by_address[DECODE]
    for read_s in (0.75, 1.0):
        decoder.reported(
            EngineReport(running_requests=10, waiting_requests=0, read_s=read_s, changed_s=read_s, stale=False)
        )
    assert decoder.strangers == Load(2), "it has eight of ours, and none of the three"


def test_an_answer_takes_longer_where_prompts_are_computed_meanwhile() -> None:
    quick, slowed = pool(), pool()
    decoder = slowed.router.pool.by_address[DECODE]
    for second in range(20):
        ticket = Ticket(decoder, 1, 1)
        decoder.prefills.expect(ticket, 500.0, float(second))
        ticket.release()
    usual, ways = choice(ask(quick, now_s=20.0)), choice(ask(slowed, now_s=20.0))
    assert ways.alone.decode_ms == pytest.approx(2 * usual.alone.decode_ms, rel=0.1)
    assert ways.split.decode_ms == pytest.approx(2 * usual.split.decode_ms, rel=0.1)


def test_an_idle_endpoint_computes_its_prompt_itself_as_nobody_waits_for_it() -> None:
    in_flight = ask(pool())
    assert in_flight.hop is None
    assert not choice(in_flight).is_split
    assert loads_of_pending(in_flight) == LONG


def loads_of_pending(in_flight: InFlight) -> int:
    return in_flight.request.tokens - in_flight.decision.cached_tokens


def test_a_short_prompt_is_computed_where_it_is_decoded() -> None:
    world = pool()
    busy(world)
    assert ask(world, SHORT).hop is None


def test_a_slow_network_is_too_expensive() -> None:
    world = pool(transfer_ms_per_token=5.0)
    busy(world)
    assert ask(world).hop is None


def test_a_long_queue_at_the_prefill_endpoint_is_too_expensive() -> None:
    world = pool()
    busy(world)
    carries(world.router.pool.by_address[PREFILL], inflight_requests=30, pending_prefill_tokens=600_000)
    assert ask(world).hop is None


def test_prompts_that_should_be_computed_by_now_no_longer_wait_at_the_prefill_endpoint() -> None:
    world = pool()
    busy(world)
    asked = msgspec.structs.replace(request(tokens=LONG), may_split=True)
    waits_ms = []
    for now_s in (0.0, 0.0, 3600.0):
        in_flight = world.router.admit(asked, now_s=now_s)
        assert isinstance(in_flight, InFlight)
        waits_ms.append(choice(in_flight).split.wait_ms)
    assert waits_ms == [0, pytest.approx(0.1 * LONG), 0]


@pytest.mark.parametrize(
    "fields",
    [{"kv_connector": "mooncake"}, {"kv_connector": ""}, {"identity": EngineIdentity("0.18.1")}, {"model": "other"}],
)
def test_engines_that_cannot_pass_a_prompt_on_are_not_asked_to(fields: dict[str, Any]) -> None:
    world = pool(**fields)
    busy(world)
    model = fields.get("model", "m")
    asked = msgspec.structs.replace(request(model, tokens=LONG), may_split=True)
    in_flight = world.router.admit(asked)
    assert isinstance(in_flight, InFlight)
    assert in_flight.decision.prefill is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["nixl", "mooncake"]), st.floats(0.01, 1.0), st.integers(0, 40), st.integers(0, 60_000)
        ),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.integers(0, LONG), min_size=12, max_size=12),
    st.integers(0, 70_000),
)
def test_of_many_that_can_compute_a_prompt_the_cheapest_for_all_does(
    others: list[tuple[str, float, int, int]], cached: list[int], waiting: int
) -> None:
    world = World()
    decoder = world.endpoint(DECODE, role="decode", kv_connector="nixl", identity=SAFE)
    carries(decoder, inflight_requests=8, decoding_requests=8, pending_prefill_tokens=waiting)
    able = []
    for i, (connector, ms_per_token, requests, pending) in enumerate(others):
        each = world.endpoint(
            f"10.0.1.{i}:1", role="prefill", kv_connector=connector, identity=SAFE, prefill_ms_per_token=ms_per_token
        )
        carries(each, inflight_requests=requests, pending_prefill_tokens=pending)
        able.append(each)
    held = {each.address: tokens for each, tokens in zip(able, cached, strict=False)}
    (at,) = candidates([decoder], request(tokens=LONG), {})

    def by(prefillers: Sequence[Endpoint]) -> Hops | None:
        return cheapest_split(at, decoder, offers(prefillers, LONG, held), LONG, 0.05, 0.0)

    chosen, each_alone = by(able), [found for each in able if (found := by([each])) is not None]
    assert (chosen is None) == (not each_alone)
    if chosen is not None:
        assert chosen.total_ms() == pytest.approx(min(way.total_ms() for way in each_alone))


def test_a_prefill_endpoint_that_is_down_or_outside_the_gateways_subset_is_not_asked() -> None:
    world = pool()
    busy(world)
    asked = msgspec.structs.replace(request(tokens=LONG), may_split=True)
    outside = world.router.admit(asked, {DECODE})
    assert isinstance(outside, InFlight)
    assert outside.hop is None
    for _ in range(5):
        world.router.pool.by_address[PREFILL].request_failed(0.0)
    assert ask(world).hop is None


def test_without_roles_nothing_is_looked_at() -> None:
    world = World()
    for address in (PREFILL, DECODE):
        world.endpoint(address, kv_connector="nixl", identity=SAFE, inflight_requests=8, decoding_requests=8)
    assert ask(world).decision.prefill is None


def test_whoever_decodes_is_the_one_that_decodes_soonest() -> None:
    world = pool()
    world.endpoint("10.0.0.3:1", role="decode", kv_connector="nixl", identity=SAFE, transfer_ms_per_token=0.05)
    busy(world, DECODE, 40)
    busy(world, "10.0.0.3:1", 10)
    assert ask(world).decision.addresses[0] == "10.0.0.3:1"


def computes(world: World, address: str, until_s: int = 20) -> None:
    """Half of its time, up to now."""
    endpoint = world.router.pool.by_address[address]
    for second in range(until_s):
        ticket = Ticket(endpoint, 1, 1)
        endpoint.prefills.expect(ticket, 500.0, float(second))
        ticket.release()


def test_whoever_decodes_is_not_one_that_computes_prompts_all_the_time() -> None:
    world = pool()
    world.endpoint("10.0.0.3:1", role="decode", kv_connector="nixl", identity=SAFE, transfer_ms_per_token=0.05)
    busy(world, DECODE, 10)
    busy(world, "10.0.0.3:1", 12)
    computes(world, DECODE)
    in_flight = ask(world, now_s=20.0)
    assert in_flight.hop is not None
    assert in_flight.decision.addresses == ("10.0.0.3:1", DECODE)


def both(policy: str = "fairlead") -> World:
    """Two endpoints that answer, of which the first computes prompts half of its time, and one for prompts."""
    world = World(policy)
    spec: dict[str, Any] = {"kv_connector": "nixl", "identity": SAFE, "transfer_ms_per_token": 10.0}
    for address in (DECODE, "10.0.0.3:1"):
        world.endpoint(address, **spec)
    world.endpoint(PREFILL, role="prefill", **spec)
    busy(world, DECODE, 4)
    busy(world, "10.0.0.3:1", 5)
    computes(world, DECODE)
    return world


def test_a_request_that_is_not_worth_splitting_is_not_answered_there_either() -> None:
    in_flight = ask(both(), 200, now_s=20.0)
    assert in_flight.hop is None
    assert choice(in_flight).alone.decoder == "10.0.0.3:1"
    assert in_flight.decision.addresses == ("10.0.0.3:1", DECODE)
    assert in_flight.decision.best[0].candidate.address == "10.0.0.3:1"  # whose terms are logged


def test_one_that_leaves_its_sessions_endpoint_so_did_not_come_for_its_sake() -> None:
    world = both()
    world.router.sessions.bind(b"s" * 16, DECODE, 0.0)
    decision = ask(world, 200, now_s=20.0, session=b"s" * 16).decision
    assert decision.addresses[0] == "10.0.0.3:1"
    assert decision.why == "cost"


def test_a_policy_that_does_not_rank_by_cost_has_its_first_choice() -> None:
    in_flight = ask(both("least_request"), 200, now_s=20.0)
    assert choice(in_flight).alone.decoder == DECODE
    assert in_flight.decision.addresses == (DECODE, "10.0.0.3:1")


def test_what_the_prefill_endpoint_computed_is_in_its_cache_and_in_the_other_ones() -> None:
    world = pool()
    busy(world)
    in_flight = ask(world)
    in_flight.prefilled_elsewhere(1.0)
    in_flight.sent(in_flight.request, 1.0)
    assert world.router.index.match((1, 2, 3, 4), 1.0) == {PREFILL: 4, DECODE: 4}
    assert loads(world)[0] == Load()


@pytest.mark.parametrize("fills_up", ["before", "meanwhile", "never"])
def test_what_a_prefill_shows_of_its_engine_says_what_else_that_did(fills_up: str) -> None:
    """Else what a prompt waits for room, or for the steps of answers, would be taken for a slow engine."""
    world, full = pool(), EngineReport(waiting_requests=3, kv_usage=0.99, stale=False)
    busy(world)
    prefiller = world.router.pool.by_address[PREFILL]
    carries(prefiller, inflight_requests=5, decoding_requests=5)
    if fills_up == "before":
        prefiller.report = full
    hop = ask(world).hop
    assert hop is not None
    prefiller.report = full if fills_up == "meanwhile" else EngineReport()
    seen = hop.observation(LONG, 0, 3.0)
    assert seen.engine_full is (fills_up != "never")
    assert seen.decoding_before == 5


def test_a_prefill_endpoint_that_has_joined_is_one_of_the_pool_once_it_has_computed_some_prompts() -> None:
    world = pool()
    busy(world)
    endpoint = world.router.pool.by_address[PREFILL]
    endpoint.warm_in.begin()
    for now_s in range(ANSWERS):
        asked = [ask(world, now_s=10.0 * now_s) for _ in range(FIRST_REQUESTS)]
        assert [each.hop is not None for each in asked] == [True] * FIRST_REQUESTS
        asked[0].prefilled_elsewhere(10.0 * now_s)
        for each in asked:
            each.withdraw(10.0 * now_s)
    assert endpoint.warm_in.is_over


def test_a_failed_prefill_is_computed_where_it_is_decoded() -> None:
    world = pool()
    busy(world)
    in_flight = ask(world)
    in_flight.prefill_failed(1.0, blames="engine")
    in_flight.sent(in_flight.request, 1.0)
    prefill, decode = loads(world)
    assert (prefill, decode) == (Load(), Load(1, LONG, LONG, 0, LONG**2 // 2))
    assert world.router.index.match((1, 2, 3, 4), 1.0) == {DECODE: 4}


def test_a_streak_of_failed_prefills_ejects_the_endpoint_and_a_gone_client_does_not() -> None:
    world = pool()
    busy(world)
    endpoint = world.router.pool.by_address[PREFILL]
    for _ in range(6):
        ask(world).ended(100.0)
    assert endpoint.health.healthy
    for _ in range(5):
        in_flight = ask(world)
        in_flight.prefill_failed(1.0, blames="engine")
        in_flight.withdraw(1.0)
    assert not endpoint.health.healthy


def test_an_endpoint_whose_prompts_come_to_nothing_is_not_asked_for_others_and_answers_as_before() -> None:
    world = World()
    spec: dict[str, Any] = {"kv_connector": "nixl", "identity": SAFE, "transfer_ms_per_token": 0.01}
    both = world.endpoint(PREFILL, role="both", **spec)
    world.endpoint(DECODE, role="decode", **spec)
    busy(world, DECODE, 8)
    for number in range(5):
        way = Hops(DECODE, PREFILL, *6 * [0.0])
        hop = Hop(world.router, request(tokens=LONG), PrefillChoice(way, way), 0.0)
        hop.failed(1.0, blames="connection")
        assert [each.address for each in prefillers([both], "m", None, ())] == ([PREFILL] if number < 4 else [])
    assert not both.health.doubtful
    both.request_served()
    both.health.succeeded()
    assert prefillers([both], "m", None, ()) == [], "its own answers say nothing of its connection"
    both.probed(True, 10.0, 3)
    assert prefillers([both], "m", None, ()) == [both]


def by_proxy() -> tuple[World, InFlight]:
    """A request of which the engine's proxy asks for the prompt."""
    world = pool(kv_connector="proxy")
    world.router.pool.by_address[PREFILL].respecify(
        msgspec.structs.replace(world.router.pool.by_address[PREFILL].spec, kv_connector="proxy")
    )
    world.router.pool = type(world.router.pool)(world.router.pool.endpoints, world.router.pool.routes)
    busy(world)
    in_flight = ask(world)
    in_flight.prefilled_elsewhere(0.0, ended=False)
    in_flight.sent(in_flight.request, 0.0)
    return world, in_flight


@pytest.mark.parametrize("code", [400, 502])
def test_a_prompt_that_the_engines_proxy_asked_for_in_vain_was_computed_nowhere(code: int) -> None:
    world, in_flight = by_proxy()
    prefiller = world.router.pool.by_address[PREFILL]
    prefiller.request_failed(0.5)
    in_flight.served(DECODE, code, 1.0, in_one_piece=True)
    assert (loads(world)[0], world.router.index.match((1, 2, 3, 4), 1.0)) == (Load(), {})
    assert prefiller.health.doubtful
    assert in_flight.ended(2.0) is not None


def test_the_engines_proxy_keeps_its_part_until_the_answer_begins() -> None:
    world, in_flight = by_proxy()
    assert loads(world)[0].inflight_requests == 1
    in_flight.served(DECODE, 200, 1.0, in_one_piece=False)
    assert loads(world)[0] == Load()
    assert in_flight.ended(2.0) is not None


@pytest.mark.parametrize("together", [1, 50])
def test_the_transfer_is_learned_from_first_tokens_however_many_come_together(together: int) -> None:
    world = pool()
    busy(world)
    endpoint = world.router.pool.by_address[DECODE]
    before = world.router.transfers.ms_per_token(endpoint)
    for _ in range(20):
        in_flight = ask(world)
        in_flight.prefilled_elsewhere(0.0)
        in_flight.sent(in_flight.request, 0.0)
        in_flight.served(DECODE, 200, 0.0, in_one_piece=False)
        took_ms = 10 + 20 * together + 0.01 * LONG
        seen = Observation(DECODE, "m", LONG, 0, 0.0, took_ms, first_tokens=together, direct=False)
        in_flight.ended(1.0, seen)
    assert before == 0.05
    assert world.router.transfers.ms_per_token(endpoint) < 0.02


STEPS = st.lists(
    st.sampled_from(
        ["prefilled", "by proxy", "failed", "blamed", "sent", "served", "refused", "first", "ended", "withdraw"]
    ),
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=4))
def test_nothing_is_left_whatever_happens_in_whatever_order(lives: list[list[str]]) -> None:
    world = pool()
    busy(world)
    flights = [ask(world) for _ in lives]
    now_s = 1.0
    for position in range(12):
        for in_flight, steps in zip(flights, lives, strict=True):
            now_s += 0.01
            if position < len(steps):
                step(in_flight, steps[position], now_s)
    for number, in_flight in enumerate(flights):
        (in_flight.withdraw if number % 2 else in_flight.ended)(now_s)
        assert in_flight.hop is None
    assert loads(world) == [Load(), Load()]


def step(in_flight: InFlight, name: str, now_s: float) -> None:
    match name:
        case "prefilled":
            in_flight.prefilled_elsewhere(now_s)
        case "by proxy":
            in_flight.prefilled_elsewhere(now_s, ended=False)
        case "failed" | "blamed":
            in_flight.prefill_failed(now_s, blames="engine" if name == "blamed" else "nobody")
        case "sent":
            in_flight.sent(in_flight.request, now_s)
        case "served":
            in_flight.served(DECODE, 200, now_s, in_one_piece=False)
        case "refused":
            in_flight.served(DECODE, 503, now_s, in_one_piece=True)
        case "first":
            in_flight.first_token(now_s)
        case "ended":
            in_flight.ended(now_s)
        case _:
            in_flight.withdraw(now_s)


def test_an_endpoint_can_do_both() -> None:
    world = World()
    spec: dict[str, Any] = {"kv_connector": "nixl", "identity": SAFE, "transfer_ms_per_token": 0.01}
    one: Endpoint = world.endpoint(PREFILL, role="both", **spec)
    world.endpoint(DECODE, role="decode", **spec)
    busy(world, DECODE, 8)
    busy(world, PREFILL, 1)
    assert one.spec.role == "both"
    in_flight = ask(world)
    assert in_flight.decision.addresses[0] == PREFILL  # it has the least to stall, and no transfer
    assert in_flight.hop is None
