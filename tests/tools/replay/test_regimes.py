"""The default policy where there is nothing for it to reuse: it must not lose to policies with less to get wrong."""

from __future__ import annotations

from functools import cache
from random import Random
from statistics import fmean

import pytest

from fairlead.statistics import quantile
from fairlead.tools.replay.policy_spec import faster_for, read_policy_spec
from fairlead.tools.replay.workload import Workload
from fairlead.tools.replay.world import alike
from tests.tools.replay.world import run, talk, turn, workload

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


@cache
def sent_at_full_load(seed: int) -> Workload:
    sent = short_prompts(seed)
    return sent.faster(faster_for(1.0, WORLD, sent, read_policy_spec("least_request")))


def p95_ms(policy: str, load: float) -> tuple[float, float]:
    """To the first token and to the end, means over the seeds."""
    first, total = [], []
    for seed in SEEDS:
        answers, _ = run(sent_at_full_load(seed).faster(load), policy, WORLD, seed)
        first.append(quantile((each.first_token_ms for each in answers), 0.95))
        total.append(quantile((each.total_ms for each in answers), 0.95))
    return fmean(first), fmean(total)


@pytest.mark.parametrize("load", [0.4, 0.8])
def test_short_prompts_without_reuse_are_served_no_later_than_by_load_or_by_a_hash(load: float) -> None:
    ours = p95_ms("fairlead", load)
    for baseline in ("least_request", "session_affinity"):
        theirs = p95_ms(baseline, load)
        assert ours[0] <= 1.03 * theirs[0], baseline
        assert ours[1] <= 1.03 * theirs[1], baseline
