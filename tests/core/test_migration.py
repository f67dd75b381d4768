"""Whether a session moves off its host: the rules of the move, and what holds whatever the loads are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.endpoint import Endpoint, Speed
from fairlead.core.facts import RequestFacts, session_key
from fairlead.core.load import Load
from fairlead.core.migration import FIRST_PAUSE_S, MOST_COMMANDS, NOTHING_IS_HOT, CopyOutcome, Planner, Rules
from fairlead.core.moves import How, Move, Stay, has_room, must_wait_for_room, pending_tokens
from fairlead.core.reported import EngineIdentity, EngineReport
from fairlead.core.sessions import SessionTable
from tests.core.world import carries, make_endpoint

RULES = Rules(hot_tokens=1000, hot_ratio=2.0, cool_down_s=60.0, least_tokens=500)
SAFE = EngineIdentity(version="0.32.0")


class World:
    """A hot host `a:1` and whatever other endpoints a test adds; sessions live at the host and are cached there."""

    def __init__(self, rules: Rules = RULES, **host: Any) -> None:
        self.sessions = SessionTable()
        self.planner = Planner(rules, self.sessions)
        self.endpoints: list[Endpoint] = []
        self.host = self.other("a:1", **{"pending_prefill_tokens": 5000} | host)

    def other(self, address: str, **fields: Any) -> Endpoint:
        known: dict[str, Any] = {"model": "m", "kv_connector": "mooncake", "identity": SAFE}
        endpoint = make_endpoint(address, **known | fields)
        self.endpoints.append(endpoint)
        return endpoint

    def turn(
        self, session: str = "s", now_s: float = 0.0, *, tokens: int = 4000, cached: Mapping[str, int] | None = None
    ) -> Move | Stay | None:
        request = RequestFacts("m", tokens, 100, "en", 0, session=session_key(session.encode()))
        assert request.session is not None
        if self.sessions.address_of(request.session) is None:
            self.sessions.bind(request.session, "a:1", now_s)
        held = {"a:1": 3800} if cached is None else cached
        return self.planner.consider(request, self.host, self.endpoints, held, now_s)

    def move(self, session: str = "s", now_s: float = 0.0, **request: Any) -> Move:
        move = self.turn(session, now_s, **request)
        assert isinstance(move, Move)
        return move


@pytest.fixture
def world() -> World:
    world = World()
    world.other("b:1", pending_prefill_tokens=300)
    world.other("c:1", pending_prefill_tokens=200)
    return world


def test_a_session_of_a_hot_host_goes_to_the_endpoint_with_the_fewest_tokens_waiting(world: World) -> None:
    move = world.move()
    assert (move.source, move.target, move.how, move.tokens) == ("a:1", "c:1", "copy", 3800)
    assert not move.redirects


def test_a_host_that_is_not_hot_keeps_its_sessions(world: World) -> None:
    carries(world.host, pending_prefill_tokens=1000)
    assert world.turn() is None


def test_load_that_other_sidecars_sent_counts(world: World) -> None:
    carries(world.host, pending_prefill_tokens=0)
    world.host.peers_reported(Load(pending_prefill_tokens=5000), 0.0)
    world.endpoints[2].peers_reported(Load(pending_prefill_tokens=4000), 0.0)
    assert world.move().target == "b:1"


def test_a_host_is_not_hot_where_the_whole_pool_is(world: World) -> None:
    for endpoint in world.endpoints[1:]:
        carries(endpoint, pending_prefill_tokens=2500)
    assert world.turn() is None


def test_a_hot_host_stays_hot_until_it_is_down_to_half_of_the_threshold(world: World) -> None:
    world.turn("s")
    carries(world.host, pending_prefill_tokens=501)
    assert world.turn("t") is not None
    carries(world.host, pending_prefill_tokens=500)
    assert world.turn("t") is None
    carries(world.host, pending_prefill_tokens=999)
    assert world.turn("t") is None


FULL = EngineReport(kv_capacity_tokens=10_000, kv_usage=0.7)


def test_a_context_that_must_wait_for_room_in_its_hosts_cache_moves_to_where_fewer_tokens_wait() -> None:
    world = World(pending_prefill_tokens=100, inflight_requests=2, report=FULL)
    world.planner.rules = msgspec.structs.replace(RULES, hot_ratio=0.5)
    world.other("b:1", pending_prefill_tokens=4100)
    assert world.turn("s") == Stay("no_target")
    world.other("c:1", pending_prefill_tokens=4000)
    assert world.move("s").target == "c:1"
    assert world.turn("t", tokens=3000) is None
    world.planner.rules = NOTHING_IS_HOT
    assert world.turn("u") is None


def test_what_an_idle_engine_said_of_its_cache_last_moves_nobody(world: World) -> None:
    carries(world.host, pending_prefill_tokens=0)
    world.host.report = FULL
    assert world.turn() is None


def test_prompts_that_wait_for_room_count_whole_though_the_router_believes_them_cached() -> None:
    waits = msgspec.structs.replace(FULL, waiting_requests=2)
    engine = make_endpoint("a:1", "m", report=waits, pending_prefill_tokens=50)
    carries(engine, inflight_requests=4, inflight_prompt_tokens=16_000)
    assert pending_tokens(engine) == 2 * 4000
    engine.report = msgspec.structs.replace(waits, kv_usage=0.5)
    assert pending_tokens(engine) == 50


def test_a_session_that_moved_stays_for_the_cool_down(world: World) -> None:
    world.planner.ended(world.move(now_s=0), 0, "done")
    assert world.turn(now_s=60) == Stay("cooling")
    assert isinstance(world.turn(now_s=61), Move)


def test_a_move_by_another_sidecar_starts_the_cool_down_too(world: World) -> None:
    session = session_key(b"s")
    world.sessions.bind(session, "b:1", 0)
    world.sessions.learn(session, "a:1", 10)
    assert world.turn(now_s=69) == Stay("cooling")


def test_a_small_context_is_not_worth_a_move(world: World) -> None:
    assert world.turn(tokens=499) == Stay("small")


def test_what_the_host_has_lost_is_computed_where_its_first_token_comes_sooner(world: World) -> None:
    world.endpoints[2].speed = Speed(9.0, 20.0)
    assert world.turn("s", cached={"a:1": 499}) == Stay("too_expensive")
    world.endpoints[2].speed = world.host.speed
    move = world.move("t", cached={"a:1": 499})
    assert (move.target, move.how) == ("c:1", "recompute")


@pytest.mark.parametrize(
    "unfit",
    [
        {"model": "other"},
        {"healthy": False},
        {"pending_prefill_tokens": 5000},
        {"max_model_len": 3999},
        {"report": EngineReport(kv_capacity_tokens=10_000, kv_usage=0.7)},
        {"report": EngineReport(kv_block_tokens=128)},
        {"report": EngineReport(kv_dtype="fp8")},
    ],
)
def test_an_endpoint_that_cannot_take_the_context_is_no_target(unfit: dict[str, Any]) -> None:
    world = World(
        Rules(hot_tokens=1000, hot_ratio=1.0, least_tokens=500),
        report=EngineReport(kv_block_tokens=16, kv_dtype="auto"),
    )
    world.other("b:1", **unfit)
    world.other("c:1")
    world.planner.draining.add("c:1")
    assert world.turn() == Stay("no_target")


@pytest.mark.parametrize("unknown", [{"report": EngineReport()}, {"max_model_len": 4000}])
def test_what_a_target_does_not_say_speaks_for_it(unknown: dict[str, Any]) -> None:
    world = World(report=EngineReport(kv_block_tokens=16, kv_dtype="auto"))
    world.other("b:1", **unknown)
    assert world.move().target == "b:1"


def test_engines_that_share_a_store_redirect_at_once() -> None:
    world = World(kv_connector="shared")
    world.other("b:1", kv_connector="shared", pending_prefill_tokens=4900, prefill_ms_per_token=9.0)
    world.other("c:1", pending_prefill_tokens=4950)
    world.planner = Planner(Rules(hot_tokens=1000, hot_ratio=1.0, least_tokens=500), world.sessions)
    move = world.move()
    assert (move.target, move.how, move.redirects) == ("b:1", "pull", True)


@pytest.mark.parametrize(
    "old", [{"kv_connector": ""}, {"kv_connector": "nixl"}, {"identity": EngineIdentity("0.29.1")}]
)
def test_without_a_safe_way_to_copy_a_session_moves_only_if_computing_again_is_sooner(old: dict[str, Any]) -> None:
    world = World()
    world.other("b:1", **old)
    assert world.move().how == "recompute"
    carries(world.host, pending_prefill_tokens=3000)
    assert world.turn("t") == Stay("too_expensive")


def test_a_target_that_holds_nearly_all_of_it_needs_no_copy(world: World) -> None:
    assert world.move(cached={"a:1": 3800, "c:1": 3400}).how == "recompute"


def test_copies_are_capped_by_endpoint_and_by_pool() -> None:
    world = World(Rules(hot_tokens=1000, least_tokens=500, most_copies=2, most_copies_per_endpoint=3))
    world.other("b:1")
    first = world.move("s1")
    world.move("s2")
    assert world.turn("s3") == Stay("busy")
    world.planner.ended(first, 1, "done")
    assert world.move("s3", 1).target == "b:1"


def test_one_session_is_never_copied_twice_at_once() -> None:
    world = World(Rules(hot_tokens=1000, least_tokens=500, cool_down_s=0, most_copies_per_endpoint=3))
    world.other("b:1")
    world.move(now_s=0)
    assert world.turn(now_s=100) == Stay("busy")


def test_after_a_failure_both_ends_are_left_alone_for_longer_and_longer(world: World) -> None:
    world.endpoints.pop(1)
    world.planner.ended(world.move("s1", 0), 0, "failed")
    assert world.turn("s2", FIRST_PAUSE_S - 0.1) == Stay("busy")
    world.planner.ended(world.move("s2", FIRST_PAUSE_S), 5, "failed")
    assert world.turn("s3", 5 + 2 * FIRST_PAUSE_S - 0.1) == Stay("busy")
    world.planner.ended(world.move("s3", 5 + 2 * FIRST_PAUSE_S), 20, "done")
    assert isinstance(world.turn("s4", 20), Move)


def test_sessions_of_a_draining_host_move_whatever_its_load_and_their_size(world: World) -> None:
    world.planner.draining.add("a:1")
    carries(world.host, pending_prefill_tokens=0)
    assert world.move("s1").how == "copy"
    assert world.move("s2", tokens=10, cached={}).how == "recompute"


@pytest.mark.parametrize(
    ("outcome", "next_session", "how"),
    [
        ("dropped", "s", "recompute"),
        ("failed", "s", "recompute"),
        ("withdrawn", "s", "copy"),  # it never began
        ("dropped", "another", "copy"),
    ],
)
def test_a_session_whose_own_copy_was_not_made_leaves_a_draining_host_at_its_next_request(
    world: World, outcome: CopyOutcome, next_session: str, how: How
) -> None:
    world.planner.draining.add("a:1")
    world.planner.ended(world.move("s", 0), 0, outcome)
    assert world.move(next_session, 0.1).how == how
    assert world.planner.done["recompute"] == (how == "recompute")


def test_a_copy_that_fails_does_not_keep_others_at_a_draining_host(world: World) -> None:
    world.planner.draining.add("a:1")
    world.planner.ended(world.move("s1", 0), 0, "failed")
    assert world.move("s2", FIRST_PAUSE_S - 0.1).how == "recompute"
    assert world.move("s3", FIRST_PAUSE_S).how == "copy"


def test_an_ordered_session_waits_until_copies_are_made_again(world: World) -> None:
    world.planner.ended(world.move("s1", 0), 0, "failed")
    world.planner.command(session_key(b"s2"), "c:1")
    assert world.turn("s2", FIRST_PAUSE_S - 0.1) == Stay("busy")
    assert world.move("s2", FIRST_PAUSE_S).how == "copy"


def test_sessions_that_could_not_be_copied_are_remembered_in_bounded_memory(world: World) -> None:
    world.planner.draining.add("a:1")
    for number in range(11_000):
        world.planner.ended(world.move(f"s{number}", 0), 0, "dropped")
    assert len(world.planner._not_copied) == 10_000


def test_no_new_session_goes_to_a_draining_endpoint_unless_all_are(world: World) -> None:
    world.planner.draining.add("b:1")
    assert [e.address for e in world.planner.without_draining(world.endpoints, None)] == ["a:1", "c:1"]
    assert len(world.planner.without_draining(world.endpoints, "b:1")) == 3
    world.planner.draining |= {"a:1", "c:1"}
    assert len(world.planner.without_draining(world.endpoints, None)) == 3


def test_an_ordered_session_goes_where_it_was_ordered_at_its_next_request_and_only_once(world: World) -> None:
    carries(world.host, pending_prefill_tokens=0)
    assert world.planner.command(session_key(b"s"), "b:1")
    assert world.turn("other") is None
    assert world.move("s").target == "b:1"
    assert not world.planner.commands


def test_an_order_to_an_endpoint_that_cannot_take_the_session_waits(world: World) -> None:
    world.planner.command(session_key(b"s"), "b:1")
    world.endpoints[1].health.healthy = False
    assert world.turn("s") == Stay("no_target")
    world.endpoints[1].health.healthy = True
    assert world.move("s").target == "b:1"


def test_orders_are_bounded(world: World) -> None:
    assert all(world.planner.command(session_key(str(n).encode()), "b:1") for n in range(MOST_COMMANDS))
    assert not world.planner.command(session_key(b"one more"), "b:1")
    assert world.planner.command(session_key(b"0"), "c:1")


def test_a_move_back_to_where_a_session_came_from_is_told(world: World) -> None:
    out = world.move(now_s=0)
    world.planner.ended(out, 0, "done")
    world.sessions.flip(out.session, "a:1", out.target, 0)
    world.sessions.flip(out.session, out.target, "b:1", 1)
    world.host, hot = world.endpoints[1], world.host
    carries(hot, pending_prefill_tokens=0)
    carries(world.host, pending_prefill_tokens=9000)
    back = world.move(now_s=100, cached={"b:1": 3800})
    world.planner.ended(back, 100, "done")
    assert (out.target, back.target) == ("c:1", "a:1")
    assert (world.planner.back, world.planner.times) == (1, {1: 1, 2: 1})
    assert world.planner.done == {"copy": 2}


def test_a_copy_that_is_no_longer_wanted_holds_nobody_back(world: World) -> None:
    world.planner.ended(world.move("s1"), 0, "dropped")
    assert isinstance(world.turn("s2"), Move)
    assert world.planner.done == {}


loads = st.integers(0, 20_000)
engines: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    model=st.sampled_from(["m", "n"]),
    pending_prefill_tokens=loads,
    healthy=st.booleans(),
    kv_connector=st.sampled_from(["", "mooncake", "shared"]),
    report=st.builds(
        EngineReport,
        kv_block_tokens=st.sampled_from([None, 16, 128]),
        waiting_requests=st.integers(0, 2),
        kv_capacity_tokens=st.sampled_from([None, 10_000]),
        kv_usage=st.floats(0, 1),
    ),
    inflight_requests=st.integers(0, 3),
    inflight_prompt_tokens=loads,
)
steps = st.tuples(st.integers(0, 3), st.floats(0, 50), st.lists(loads, min_size=4, max_size=4), st.booleans())


@given(st.lists(engines, min_size=4, max_size=4), st.lists(steps, max_size=40))
def test_whatever_the_loads_no_session_moves_twice_inside_the_cool_down_to_a_busier_host_or_across_models(
    pool: Sequence[dict[str, Any]], turns: Sequence[tuple[int, float, list[int], bool]]
) -> None:
    sessions = SessionTable()
    planner = Planner(RULES, sessions)
    all_endpoints = [make_endpoint(f"{n}:1", identity=SAFE, **fields) for n, fields in enumerate(pool)]
    by_address = {endpoint.address: endpoint for endpoint in all_endpoints}
    moved_s: dict[int, float] = {}
    now_s = 0.0
    for number, passed_s, pending, failed in turns:
        now_s += passed_s
        for endpoint, tokens in zip(all_endpoints, pending, strict=True):
            carries(endpoint, pending_prefill_tokens=tokens)
        session = session_key(str(number).encode())
        home = sessions.endpoint_of(session, now_s) or f"{number}:1"
        sessions.bind(session, home, now_s)
        request = RequestFacts("m", 4000, 100, "en", 0, session=session)
        move = planner.consider(request, by_address[home], all_endpoints, {home: 3000}, now_s)
        if not isinstance(move, Move):
            continue
        source, target = by_address[move.source], by_address[move.target]
        assert now_s - moved_s.get(number, -1e9) >= RULES.cool_down_s
        assert source.address == home
        own = request.tokens if must_wait_for_room(source, request.tokens) else 0  # it would wait there itself
        assert pending_tokens(target) < pending_tokens(source) + own
        assert has_room(target, request.tokens)
        assert target.health.healthy
        assert target.model == source.model
        moved_s[number] = now_s
        if move.how == "copy":
            planner.ended(move, now_s, "failed" if failed else "done")
        if not failed:
            sessions.flip(session, move.source, move.target, now_s)
