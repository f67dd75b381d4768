"""A run: nothing is lost or counted twice, decisions are the router's, times are the engines' and the network's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.candidates import Candidate
from fairlead.core.capability import Capability
from fairlead.core.facts import RequestFacts
from fairlead.core.language import LANGUAGES
from fairlead.core.lengths import BUCKETS
from fairlead.core.policy import Ranking
from fairlead.errors import UserError
from fairlead.policies import build_policy, policy_names
from fairlead.policies.registry import Rule
from fairlead.tools.replay.network import RttSeries, constant
from fairlead.tools.replay.simulation import Simulation
from fairlead.tools.replay.workload import Conversation, Workload
from fairlead.tools.replay.world import Observation, Retries, World, alike
from tests.tools.replay.world import ENGINE, reported, run, small_world, talk, turn, workload

turns = st.builds(
    turn,
    st.integers(1, 1500),
    st.integers(1, 40),
    of=st.integers(0, 3),
    think_ms=st.floats(0, 500),
)
conversations = st.builds(
    lambda start, own, session: talk(start, *own, session=session),
    st.floats(0, 3000),
    st.lists(turns, min_size=1, max_size=4),
    st.sampled_from([None, "a", "b"]),
)
workloads = st.lists(conversations, min_size=1, max_size=8).map(
    lambda all_: workload(*sorted(all_, key=lambda each: each.start_ms))
)


def traffic(seed: int, conversations: int = 40) -> Workload:
    """Mixed open and closed loop, some sessions hot."""
    rng = Random(seed)
    starts = sorted(rng.uniform(0, 4000) for _ in range(conversations))
    made: list[Conversation] = []
    for start in starts:
        of = rng.randrange(8)
        length = rng.randrange(50, 900)
        own = [
            turn(length + 120 * n, rng.randrange(1, 30), of=of, think_ms=20.0 * n) for n in range(rng.randrange(1, 5))
        ]
        made.append(talk(start, *own, session=str(of) if of % 3 else None))
    return workload(*made)


def always(probability: float) -> Capability:
    return Capability({language: (probability,) * len(BUCKETS) for language in LANGUAGES})


@pytest.mark.parametrize("policy", policy_names())
def test_the_same_seed_gives_the_same_result_bit_for_bit_under_every_policy(policy: str) -> None:
    first, _ = run(traffic(1), policy, seed=7)
    again, _ = run(traffic(1), policy, seed=7)
    assert first == again


def test_what_a_request_costs_by_itself_comes_before_its_first_token() -> None:
    traffic = workload(talk(0.0, turn(100)), talk(1000.0, turn(100, of=1)))
    cheap, _ = run(traffic, world=alike(1, ENGINE))
    expensive, simulation = run(traffic, world=alike(1, replace(ENGINE, request_overhead_ms=7.0)))
    assert [each.first_token_ms for each in expensive] == pytest.approx([each.first_token_ms + 7.0 for each in cheap])
    assert simulation.engines[0].counters.finished == 2


def test_another_seed_draws_otherwise() -> None:
    assert run(traffic(1), "random", seed=1)[0] != run(traffic(1), "random", seed=2)[0]


@settings(max_examples=40, deadline=None)
@given(workloads, st.sampled_from(policy_names()))
def test_every_turn_is_answered_once_and_every_load_is_given_back(traffic: Workload, policy: str) -> None:
    answers, simulation = run(traffic, policy)
    wanted = [(n, t, 1) for n, each in enumerate(traffic.conversations) for t in range(len(each.turns))]
    assert sorted(reported(answers)) == wanted
    for endpoint in simulation.endpoints:
        assert (endpoint.load.inflight_requests, endpoint.load.inflight_prompt_tokens) == (0, 0)
        assert (endpoint.load.pending_prefill_tokens, endpoint.load.decoding_requests) == (0, 0)
    for engine in simulation.engines:
        assert (engine.running, engine.waiting, engine.pool.used) == (0, 0, 0)


@settings(max_examples=40, deadline=None)
@given(workloads)
def test_a_turn_is_sent_when_the_answer_before_it_has_ended_and_its_think_time_has_passed(traffic: Workload) -> None:
    answers, _ = run(traffic)
    by_turn = {(each.conversation, each.turn): each for each in answers}
    for (number, place), answer in by_turn.items():
        conversation = traffic.conversations[number]
        if place == 0:
            assert answer.sent_ms == conversation.start_ms
        else:
            before = by_turn[number, place - 1]
            expected_ms = before.sent_ms + before.total_ms + conversation.turns[place].think_ms
            assert answer.sent_ms == pytest.approx(expected_ms)


class _Shadowed(Rule, frozen=True):
    """Ranks as the policy it shadows, and keeps what the router gave it and where it said to go."""

    rule: Any
    seen: list[tuple[RequestFacts, list[Candidate], str]]

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        ranking: Ranking = self.rule.rank(request, candidates, rng)
        self.seen.append((request, list(candidates), ranking.order[0].candidate.address))
        return ranking


@pytest.mark.parametrize("policy", ["fairlead", "lmetric", "ear", "unified", "gorgo", "cache_aware", "lpwl"])
def test_requests_go_where_the_policy_alone_sends_them(policy: str) -> None:
    """Differential: the same rule, given by hand what the router gave it, names the engine that served."""
    rule = build_policy(policy, {})
    shadowed = _Shadowed(rule, [])
    answers, simulation = run(traffic(3), shadowed)
    plain, _ = run(traffic(3), policy)
    assert answers == plain
    assert len(shadowed.seen) == len(answers) > 0
    for request, candidates, address in shadowed.seen:
        assert rule.rank(request, candidates, Random(0)).order[0].candidate.address == address
    chosen = sorted(simulation.world.endpoints[each.endpoint].address for each in answers)
    assert chosen == sorted(address for _, _, address in shadowed.seen)


def test_a_prompt_is_cached_where_its_session_went_before() -> None:
    answers, _ = run(workload(talk(0, turn(800), turn(1000), session="a")), "ear")
    assert [each.cached_tokens for each in answers] == [0, 800]
    assert [each.expected_tokens for each in answers] == [0, 800]
    assert answers[0].endpoint == answers[1].endpoint
    assert answers[1].why == "affinity"


def test_a_lone_request_takes_the_network_both_ways_and_the_engine_s_steps() -> None:
    world = msgspec.structs.replace(small_world(1), regions={"": constant(30.0)})
    (answer,), _ = run(workload(talk(0, turn(100, 3))), world=world)
    assert answer.first_token_ms == pytest.approx(30.0 + 1.0 + 50.0)
    assert answer.total_ms == pytest.approx(81.0 + 2 * (1.0 + 5.0 + 0.5))


def test_a_closer_region_is_preferred_until_its_round_trip_grows() -> None:
    series = RttSeries([0.0, 60.0], [5.0, 500.0], 1e9)
    far = constant(100.0)
    specs = small_world(2).endpoints
    world = World(
        (msgspec.structs.replace(specs[0], region="near"), msgspec.structs.replace(specs[1], region="far")),
        regions={"near": series, "far": far},
        observation=Observation(rtt_s=1.0),
    )
    sent = workload(*(talk(1000.0 * n, turn(50, of=n)) for n in range(120)))
    answers, _ = run(sent, world=world)
    chosen = [each.endpoint for each in sorted(answers, key=lambda each: each.sent_ms)]
    assert set(chosen[:60]) == {0}
    assert set(chosen[70:]) == {1}


def test_reports_that_are_read_seldom_mislead_who_believes_them() -> None:
    """least_load reads what engines report: with old reports it herds requests, with fresh ones it does not."""
    rush = workload(*(talk(10.0 * n, turn(16, 60, of=n)) for n in range(60)))

    def busiest(scrape_s: float) -> int:
        world = msgspec.structs.replace(small_world(3), observation=Observation(scrape_s=scrape_s))
        answers, _ = run(rush, "llm_d", world)
        chosen = [each.endpoint for each in answers]
        return max(chosen.count(place) for place in range(3))

    assert busiest(0.02) <= busiest(30.0)
    assert busiest(0.02) <= 25


def test_a_wrong_answer_is_asked_again_of_another_model_until_it_is_right() -> None:
    specs = small_world(2).endpoints
    world = World(
        (msgspec.structs.replace(specs[0], model="bad"), msgspec.structs.replace(specs[1], model="good")),
        routes={"any": ("bad", "good")},
        asked="any",
        retries=Retries(right={"bad": always(0.0), "good": always(1.0)}, most_attempts=4),
    )
    answers, _ = run(workload(talk(0, turn(50)), talk(5000, turn(50))), "load_aware_exclude_tried", world)
    for number in (0, 1):
        own = [each for each in answers if each.conversation == number]
        assert own[-1].model == "good"
        assert own[-1].right
        assert all(not each.right for each in own[:-1])
        assert [each.attempt for each in own] == list(range(1, len(own) + 1))
        assert {each.asked_ms for each in own} == {own[0].sent_ms}


def test_attempts_end_at_the_most_that_the_client_makes() -> None:
    world = msgspec.structs.replace(small_world(1), retries=Retries(right={"m": always(0.01)}, most_attempts=3))
    answers, _ = run(workload(talk(0, turn(50))), world=world)
    assert [each.attempt for each in answers] == [1, 2, 3]


def test_policies_meet_the_same_draws() -> None:
    world = msgspec.structs.replace(small_world(3), retries=Retries(right={"m": always(0.5)}))
    one, _ = run(traffic(5), "random", world)
    other, _ = run(traffic(5), "ear", world)
    assert {(a.conversation, a.turn): a.right for a in one} == {(a.conversation, a.turn): a.right for a in other}
    assert 0.3 < sum(each.right for each in one) / len(one) < 0.7


def test_a_prompt_that_fits_no_engine_is_refused_and_ends_its_conversation() -> None:
    sent = workload(talk(0, turn(100), turn(1_000_000), turn(100)), talk(1, turn(100)))
    answers, simulation = run(sent)
    assert (simulation.counts.refused, simulation.counts.dropped) == (1, 1)
    refused = [each for each in answers if each.endpoint < 0]
    assert [(each.conversation, each.turn, each.why) for each in refused] == [(0, 1, "refused")]
    assert all(endpoint.load.inflight_requests == 0 for endpoint in simulation.endpoints)


def test_a_policy_that_raises_is_named_with_its_cause() -> None:
    class Broken(Rule, frozen=True):
        def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:  # noqa: ARG002
            raise ZeroDivisionError("of all things")

    with pytest.raises(UserError, match=r"Broken failed:\n[\s\S]*of all things"):
        run(workload(talk(0, turn(100))), Broken())


def test_a_model_that_nobody_serves_is_named() -> None:
    asked = msgspec.structs.replace(turn(100), model="elsewhere")
    with pytest.raises(UserError, match='asks for "elsewhere"'):
        run(workload(talk(0, asked)))


def test_first_tokens_are_known_of_a_sample_only() -> None:
    """The budget of observed messages decides which tickets hear of their first token."""
    seen = []
    for rate in (0.0, 1e9):
        world = msgspec.structs.replace(
            small_world(), observation=Observation(answers_per_second=rate, messages_per_second=rate)
        )
        _, simulation = run(traffic(2), world=world)
        seen.append(simulation.learner.models.get("m"))
    assert seen[0] is None
    assert seen[1] is not None
    assert seen[1].line.prefill_ms == pytest.approx(ENGINE.prefill_ms_per_token, rel=0.5)


def test_progress_counts_every_turn_once() -> None:
    received: list[int] = []
    sent = traffic(4)
    simulation = Simulation(
        small_world(), sent, build_policy("ear", {}), seed=0, sink=lambda _: None, progress=received.append
    )
    simulation.run()
    assert sum(received) == sent.requests == simulation.counts.sent
