"""The default policy where there is nothing for it to reuse: it must not lose to policies with less to get wrong."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from fairlead.bench.numbers import quantile
from fairlead.replay.contest import contestant, faster_for
from fairlead.replay.workload import Workload
from fairlead.replay.world import World, alike
from tests.replay.world import run, talk, turn, workload

WORLD = alike(2)
SEEDS = (1, 2)


def short_prompts(seed: int, requests: int = 1000) -> Workload:
    """One prompt a session, none like another, as a Poisson process."""
    rng = Random(seed)
    at_ms, talks = 0.0, []
    for number in range(requests):
        at_ms += rng.expovariate(1 / 50.0)
        prompt_tokens, output_tokens = (round(rng.lognormvariate(0, 0.8) * median) for median in (600, 120))
        sent = turn(max(1, prompt_tokens), max(2, output_tokens), of=number)
        talks.append(talk(at_ms, sent, session=str(number)))
    return workload(*talks)


def p95_ms(policy: str, load: float, world: World) -> tuple[float, float]:
    """To the first token and to the end, means over the seeds."""
    first, total = [], []
    for seed in SEEDS:
        sent = short_prompts(seed)
        sent = sent.faster(faster_for(load, world, sent, contestant("least_request")))
        answers, _ = run(sent, policy, world, seed)
        first.append(quantile(sorted(each.first_token_ms for each in answers), 0.95))
        total.append(quantile(sorted(each.total_ms for each in answers), 0.95))
    return fmean(first), fmean(total)


@pytest.mark.parametrize("load", [0.4, 0.8])
def test_short_prompts_without_reuse_are_served_no_later_than_by_load_or_by_a_hash(load: float) -> None:
    ours = p95_ms("fairlead", load, WORLD)
    for rival in ("least_request", "session_affinity"):
        theirs = p95_ms(rival, load, WORLD)
        assert ours[0] <= 1.03 * theirs[0], rival
        assert ours[1] <= 1.03 * theirs[1], rival
