"""SGLang's servers that do one half of a request each: neither answers without the other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead.core import halves
from fairlead.core.in_flight import InFlight
from fairlead.core.ledger import Ticket
from fairlead.core.load import Load
from fairlead.core.policy import Refusal
from fairlead.core.prefill_decode import prefillers
from fairlead.core.reported import EngineIdentity
from fairlead.core.warm_in import FIRST_REQUESTS
from tests.core.world import World, carries, request

PREFILL, DECODE, PLAIN = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"
HALF = EngineIdentity("0.5.23", serves_alone=False)


def pool(**prefiller: Any) -> World:
    world = World()
    sglang: dict[str, Any] = {"engine": "sglang", "kv_connector": "sglang", "identity": HALF}
    world.endpoint(PREFILL, role="prefill", **(sglang | prefiller))
    world.endpoint(DECODE, role="decode", **sglang)
    return world


def ask(world: World, **facts: Any) -> InFlight | Refusal:
    asked = msgspec.structs.replace(request(tokens=20), **({"may_split": True, "prefix": (1, 2)} | facts))
    return world.router.admit(asked)


def sent(world: World) -> InFlight:
    in_flight = ask(world)
    assert isinstance(in_flight, InFlight)
    in_flight.prefilled_elsewhere(1.0, ended=False)
    in_flight.sent(in_flight.request, 1.0)
    return in_flight


def is_refused(answer: InFlight | Refusal) -> bool:
    return isinstance(answer, Refusal) and answer.reason == "no_endpoint"


def at_rest(world: World) -> bool:
    return all(endpoint.own == Load() for endpoint in world.router.pool.endpoints)


def test_even_a_short_prompt_for_an_idle_server_is_computed_at_the_other() -> None:
    world = pool()
    in_flight = ask(world)
    assert isinstance(in_flight, InFlight)
    assert in_flight.decision.addresses == (DECODE,)
    assert in_flight.hop is not None
    assert in_flight.hop.address == PREFILL
    in_flight.withdraw(1.0)
    assert at_rest(world)


def test_without_one_that_computes_prompts_nobody_can_answer() -> None:
    world = pool()
    world.router.pool.by_address[PREFILL].health.withhold("draining")
    assert is_refused(ask(world))


def test_one_that_drains_computes_prompts_only_while_no_other_is_left() -> None:
    world = pool()
    other = world.endpoint("10.0.0.4:1", role="prefill", engine="sglang", kv_connector="sglang", identity=HALF)
    world.router.planner.draining.add(PREFILL)
    for healthy, expected in ((True, other.address), (False, PREFILL)):
        other.health.withhold("draining", active=not healthy)
        in_flight = ask(world)
        assert isinstance(in_flight, InFlight)
        assert in_flight.hop is not None
        assert in_flight.hop.address == expected
        in_flight.withdraw(1.0)


def test_one_that_has_just_joined_computes_more_than_its_first_prompts_where_no_other_can() -> None:
    world = pool()
    world.router.pool.by_address[PREFILL].warm_in.begin()
    asked = [ask(world) for _ in range(3 * FIRST_REQUESTS)]
    assert all(isinstance(each, InFlight) for each in asked)
    world.router.pool.by_address[PREFILL].health.probed(answered=False, now_s=1.0, failures_to_eject=1)
    assert is_refused(ask(world))


def test_those_that_compute_prompts_are_looked_through_for_each_model_and_not_for_each_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str | None] = []

    def counted(among: Any, name: str | None, *others: Any) -> list[Any]:
        looked.append(name)
        return prefillers(among, name, *others)

    monkeypatch.setattr(halves, "prefillers", counted)
    world = pool()
    for number in range(3, 40):
        same: dict[str, Any] = {"engine": "sglang", "kv_connector": "sglang", "identity": HALF}
        world.endpoint(f"10.0.0.{number}:1", role="decode", **same)
    assert isinstance(ask(world), InFlight)
    assert looked == ["m", "m"]  # who can answer, and which pair is cheapest


@pytest.mark.parametrize("connector", ["nixl", ""])
def test_one_with_another_connector_is_of_no_use(connector: str) -> None:
    world = pool(engine="vllm", kv_connector=connector, identity=EngineIdentity("0.32.0"))
    assert is_refused(ask(world))


def test_what_cannot_be_split_goes_to_a_server_that_does_both_halves() -> None:
    world = pool()
    assert ask(world, may_split=False) == Refusal("one_server")
    world = pool()
    world.endpoint(PLAIN, engine="sglang")
    in_flight = ask(world, may_split=False)
    assert isinstance(in_flight, InFlight)
    assert in_flight.decision.addresses == (PLAIN,)


def test_what_cannot_be_split_may_be_tried_again_where_the_server_that_does_both_halves_is_away() -> None:
    world = pool()
    world.endpoint(PLAIN, engine="sglang").health.withhold("draining")
    assert is_refused(ask(world, may_split=False))


def with_a_busy_server() -> World:
    """The server that does both halves ranks first, as the pair decodes something, and has computed prompts lately."""
    world = pool()
    plain = world.endpoint(PLAIN, engine="sglang")
    carries(world.router.pool.by_address[DECODE], inflight_requests=3, decoding_requests=3)
    plain.prefills.expect(Ticket(plain, 1000, 1000), 2000.0, -3.0)
    plain.prefills.settle(0.0)
    return world


def test_a_pair_that_is_cheaper_than_the_server_that_ranks_first_fails_over_to_that() -> None:
    world = with_a_busy_server()
    in_flight = ask(world, tokens=2000, may_split=True)
    assert isinstance(in_flight, InFlight)
    choice = in_flight.decision.prefill
    assert choice is not None
    assert (choice.must_split, choice.is_split, choice.else_alone) == (False, True, True)
    assert in_flight.decision.addresses == (DECODE, PLAIN)


def test_a_request_that_a_server_answers_alone_is_never_tried_at_one_that_cannot() -> None:
    world = pool()
    world.endpoint(PLAIN, engine="sglang")
    carries(world.router.pool.by_address[DECODE], inflight_requests=30, decoding_requests=30)
    for tokens in (20, 2000):
        in_flight = ask(world, tokens=tokens)
        assert isinstance(in_flight, InFlight)
        assert (in_flight.hop, in_flight.decision.addresses) == (None, (PLAIN,))


def test_a_server_that_answers_for_a_pair_leaves_nothing_at_the_one_that_was_to_compute_the_prompt() -> None:
    world = with_a_busy_server()
    in_flight = ask(world, tokens=2000)
    assert isinstance(in_flight, InFlight)
    in_flight.prefilled_elsewhere(1.0, ended=False)
    in_flight.sent(in_flight.request, 1.0)
    in_flight.served(PLAIN, 200, 2.0, in_one_piece=True)
    assert world.router.pool.by_address[PREFILL].own == Load()
    assert not in_flight.from_elsewhere
    in_flight.ended(3.0)


def test_a_server_that_reports_to_do_one_half_is_left_out_where_it_is_not_configured_as_such() -> None:
    world = World()
    world.endpoint(PLAIN, engine="sglang", identity=HALF)
    assert is_refused(ask(world))


def test_a_session_at_a_busy_server_is_split_too() -> None:
    world = pool()
    first = ask(world, session=b"s")
    second = ask(world, session=b"s")
    assert [isinstance(each, InFlight) and each.hop is not None for each in (first, second)] == [True, True]


def test_a_prefill_that_is_lost_is_the_fault_of_its_server_alone() -> None:
    world = pool()
    prefiller, decoder = (world.router.pool.by_address[address] for address in (PREFILL, DECODE))
    for _ in range(5):
        in_flight = sent(world)
        in_flight.prefill_lost(2.0, blames="engine")
        assert prefiller.own == Load()
        in_flight.served(DECODE, 500, 3.0, in_one_piece=True)
        in_flight.ended(4.0)
    assert at_rest(world)
    assert (prefiller.health.healthy, decoder.health.healthy) == (False, True)


def test_a_stream_begins_before_its_prompt_is_computed() -> None:
    world = pool()
    prefiller = world.router.pool.by_address[PREFILL]
    in_flight = sent(world)
    in_flight.served(DECODE, 200, 2.0, in_one_piece=False)
    assert prefiller.own.inflight_requests == 1
    in_flight.prefill_came(3.0)
    assert prefiller.own == Load()
    in_flight.prefill_lost(4.0, blames="engine")  # too late to count
    assert not prefiller.health.doubtful
    in_flight.ended(5.0)
    assert at_rest(world)


def test_a_stream_whose_prompt_is_lost_is_the_fault_of_the_one_that_computes_it() -> None:
    world = pool()
    prefiller, decoder = (world.router.pool.by_address[address] for address in (PREFILL, DECODE))
    for _ in range(5):
        in_flight = sent(world)
        in_flight.served(DECODE, 200, 2.0, in_one_piece=False)
        in_flight.prefill_lost(3.0, blames="engine")
        in_flight.refused_in_stream(500, 4.0)
        in_flight.ended(5.0)
    assert at_rest(world)
    assert (prefiller.health.healthy, decoder.health.healthy) == (False, True)


def test_an_answer_that_ended_shows_that_its_prompt_was_computed() -> None:
    world = pool()
    in_flight = sent(world)
    in_flight.served(DECODE, 200, 2.0, in_one_piece=True)
    in_flight.ended(3.0)
    assert at_rest(world)
    assert world.router.pool.by_address[PREFILL].served_s == 3.0
