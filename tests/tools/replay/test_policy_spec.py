"""Policies as users write them, and loads as a share of what a policy can serve."""

from __future__ import annotations

import pytest

from fairlead.errors import UserError
from fairlead.policies.gorgo import Gorgo
from fairlead.policies.session_affinity import SessionAffinity
from fairlead.tools.replay.policy_spec import capacity_per_s, faster_for, read_policy_spec
from tests.tools.replay.world import run, small_world, talk, turn, workload

EVEN = workload(*(talk(100.0 * n, turn(200, 10, of=n)) for n in range(200)))


def test_parameters_and_late_reports_stand_after_the_name() -> None:
    asked = read_policy_spec("gorgo:rtt_weight=2:release_at_first_token=true@30s")
    assert asked.policy() == Gorgo(rtt_weight=2.0, release_at_first_token=True)
    assert asked.world(small_world()).observation.scrape_s == 30.0
    assert read_policy_spec("session_affinity:key=prompt").policy() == SessionAffinity(key="prompt")
    assert read_policy_spec("gorgo").world(small_world()) == small_world()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gogo", 'policy "gogo": no policy is called "gogo"; did you mean "gorgo"'),
        ("gorgo:rtt=1", 'no parameter is called "rtt"'),
        ("gorgo:rtt_weight", '"rtt_weight" is not key=value'),
        ("gorgo:rtt_weight=-1", "rtt_weight"),
        ("gorgo@0s", "cannot be read every 0 s"),
    ],
)
def test_what_is_no_policy_is_named(text: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        read_policy_spec(text)


def test_capacity_grows_with_the_engines() -> None:
    reference = read_policy_spec("least_request")
    two, four = (capacity_per_s(small_world(n, 100_000), EVEN, reference) for n in (2, 4))
    assert four == pytest.approx(2 * two, rel=0.15)


def test_at_half_load_a_pool_keeps_up_and_at_twice_the_load_it_does_not() -> None:
    reference, world = read_policy_spec("least_request"), small_world(2, 100_000)

    def late_ms(load: float) -> float:
        answers, _ = run(EVEN.faster(faster_for(load, world, EVEN, reference)), "least_request", world)
        return sum(each.first_token_ms for each in answers[-50:]) / 50

    assert late_ms(0.5) < 300.0
    assert late_ms(2.0) > 5 * late_ms(0.5)


def test_a_trace_that_starts_all_at_once_has_no_load() -> None:
    at_once = workload(talk(0, turn(100)), talk(0, turn(100)))
    with pytest.raises(UserError, match="start at once"):
        faster_for(0.5, small_world(), at_once, read_policy_spec("ear"))
