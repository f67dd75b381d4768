"""Worlds in which the truth is not what the cost assumes: each disturbance, and the worlds that have a name."""

from __future__ import annotations

from math import exp
from statistics import fmean, pstdev
from typing import Any

import msgspec
import pytest

from fairlead.errors import UserError
from fairlead.policies import build_policy
from fairlead.tools.replay.attempts import AttemptRecord
from fairlead.tools.replay.disturbances import Foreign, Pace
from fairlead.tools.replay.moving import Moving, MovingSimulation
from fairlead.tools.replay.workload import Workload
from fairlead.tools.replay.world import Observation, Sidecars, World
from fairlead.tools.replay.world_file import read_world
from fairlead.tools.replay.worlds import CHANGES, named_world, world_called
from tests.tools.replay.test_world_file import world_file
from tests.tools.replay.world import run, small_world, talk, turn, workload

TRAFFIC: Workload = workload(
    *(talk(40.0 * n, turn(160, 12, of=n % 5), turn(200, 12, of=n % 5), session=str(n % 5)) for n in range(60))
)


def in_world(**changes: Any) -> list[AttemptRecord]:
    return run(TRAFFIC, world=msgspec.structs.replace(small_world(), **changes))[0]


def test_noise_is_drawn_for_each_step_and_an_engine_as_fast_on_average() -> None:
    pace = Pace(noise=0.4).of_engine(seed=1, place=0)
    assert pace is not None
    factors = [pace(0.0) for _ in range(4000)]
    assert pstdev(factors) == pytest.approx(0.45, abs=0.05)
    assert fmean(factors) == pytest.approx(exp(0.08), abs=0.05)


def test_engines_drift_slowly_each_in_a_phase_of_its_own() -> None:
    paces = [Pace(drift=0.5, period_s=100.0).of_engine(seed=1, place=place) for place in range(2)]
    one, other = ([pace(1e3 * second) for second in range(100)] for pace in paces if pace is not None)
    assert max(one) == pytest.approx(exp(0.5), rel=0.01)
    assert min(one) == pytest.approx(exp(-0.5), rel=0.01)
    assert one.index(max(one)) != other.index(max(other))


def test_a_mixed_pool_has_engines_that_are_quick_at_prefill_or_at_decoding_and_the_router_knows_which() -> None:
    endpoints = named_world("mixed").router_endpoints()
    prefill, decode = (
        [getattr(e.speed, of) for e in endpoints] for of in ("prefill_ms_per_token", "decode_ms_per_token")
    )
    assert len(set(zip(prefill, decode, strict=True))) == 3
    assert prefill[decode.index(min(decode))] == max(prefill)


def test_where_nobody_says_that_the_pool_is_mixed_the_router_takes_all_engines_for_the_first_one() -> None:
    mixed, unlabelled = named_world("mixed"), named_world("unlabelled")
    assert unlabelled.endpoints == mixed.endpoints
    first, *others = [endpoint.spec for endpoint in unlabelled.router_endpoints()]
    assert (first.prefill_ms_per_token, first.prefill_ratio, first.decode_ratio) == (0.1, 1.0, 1.0)
    for spec in others:
        assert (spec.prefill_ms_per_token, spec.decode_ms_per_token) == (0.1, first.decode_ms_per_token)


def test_a_pace_that_varies_by_nothing_is_none() -> None:
    assert Pace().of_engine(seed=0, place=0) is None


def test_all_policies_of_a_seed_have_the_same_foreign_requests_and_another_seed_has_others() -> None:
    def first_three(seed: int) -> list[float]:
        arrivals = Foreign(requests_per_s=1.0).arrivals(seed, place=0, block_tokens=16)
        return [next(arrivals)[0] for _ in range(3)]

    assert first_three(1) == first_three(1) != first_three(2)


def test_foreign_requests_take_time_and_cache_and_are_in_no_result() -> None:
    alone = in_world()
    crowded = in_world(foreign=Foreign(requests_per_s=12.0, prompt_tokens=600, output_tokens=30))
    assert len(crowded) == len(alone)
    assert fmean(each.total_ms for each in crowded) > fmean(each.total_ms for each in alone)
    missed = [sum(each.expected_tokens - each.cached_tokens for each in answers) for answers in (alone, crowded)]
    assert missed[1] > missed[0]  # what strangers evicted, the router still believes in


def test_foreign_requests_that_fit_no_engine_are_a_mistake_of_the_world() -> None:
    with pytest.raises(UserError, match="foreign requests do not fit"):
        in_world(foreign=Foreign(requests_per_s=4.0, prompt_tokens=30_000))


def test_estimated_tokens_are_wrong_by_as_much_in_all_turns_of_a_conversation() -> None:
    answers = in_world(observation=Observation(token_error=0.5))
    shares = {
        each.conversation: each.expected_tokens / each.cached_tokens
        for each in answers
        if each.turn == 1 and each.cached_tokens
    }
    assert min(shares.values()) < 0.8 < 1.25 < max(shares.values())


def test_where_every_report_is_lost_nothing_is_known_of_engines() -> None:
    _, simulation = run(TRAFFIC, world=msgspec.structs.replace(small_world(), observation=Observation(lost_reports=1)))
    assert all(endpoint.report.read_s is None for endpoint in simulation.endpoints)


def test_sidecars_share_the_requests_and_each_knows_its_own_only() -> None:
    answers, simulation = run(TRAFFIC, world=msgspec.structs.replace(small_world(), sidecars=Sidecars(count=3)))
    assert len(answers) == TRAFFIC.requests
    blocks = [[sidecar.router.indexed_blocks(e) for e in sidecar.endpoints] for sidecar in simulation.sidecars]
    assert len(blocks) == 3
    assert all(sum(each) for each in blocks)
    assert all(e.load.inflight_requests == 0 for sidecar in simulation.sidecars for e in sidecar.endpoints)


def test_sidecars_that_report_their_load_spread_a_burst_better_than_strangers() -> None:
    burst = workload(*(talk(10.0 * n, turn(320, 60, of=n)) for n in range(48)))

    def mean_ms(sidecars: Sidecars) -> float:
        answers, _ = run(burst, world=msgspec.structs.replace(small_world(), sidecars=sidecars))
        return fmean(each.total_ms for each in answers)

    assert mean_ms(Sidecars(count=8, load_every_s=0.001)) < mean_ms(Sidecars(count=8))


def test_sessions_move_in_a_world_of_one_sidecar_only() -> None:
    world = msgspec.structs.replace(small_world(), sidecars=Sidecars(count=2))
    with pytest.raises(UserError, match="one sidecar only"):
        MovingSimulation(world, TRAFFIC, build_policy("ear", {}), Moving("copy"), seed=0, sink=lambda _: None)


@pytest.mark.parametrize("name", CHANGES)
def test_every_named_world_answers_every_request_and_gives_all_load_back(name: str) -> None:
    world: World = named_world(name)
    few = workload(*(talk(50.0 * n, turn(1600, 8, of=n % 3), session=str(n % 3)) for n in range(12)))
    answers, simulation = run(few, world=world)
    assert sorted(each.conversation for each in answers) == list(range(12))
    assert all(e.load.inflight_requests == 0 for sidecar in simulation.sidecars for e in sidecar.endpoints)
    assert world_called(name) == world


def test_a_world_file_sets_every_disturbance(tmp_path: Any) -> None:
    text = """
    pool: [{engine: {prefill_ms_per_1k_before: 0.01, decode_ms_per_1k_held: 0.1}}]
    observe: {learn_s: 2, lost_reports: 0.2, token_error: 0.3, index_capacity: 1.5}
    pace: {noise: 0.1, drift: 0.2, period_s: 60}
    foreign: {requests_per_s: 0.5, prompt_tokens: 100, output_tokens: 10}
    sidecars: {count: 2, load_every_s: 1}
    """
    world = read_world(world_file(tmp_path, text))
    engine, observation = world.endpoints[0].engine, world.observation
    assert (engine.prefill_ms_per_1k_before, engine.decode_ms_per_1k_held) == (0.01, 0.1)
    assert observation.learn_s == 2.0
    assert (observation.lost_reports, observation.token_error, observation.index_capacity) == (0.2, 0.3, 1.5)
    assert (world.pace, world.foreign) == (Pace(0.1, 0.2, 60.0), Foreign(0.5, 100, 10))
    assert world.sidecars == Sidecars(2, 1.0)
