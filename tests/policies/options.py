"""Candidates for one request, as a policy gets them: by name in small worlds, at random in properties."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final

import msgspec
from hypothesis import strategies as st

from fairlead.core.candidates import Candidate
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ranking
from fairlead.policies import build_policy
from tests.core.world import request

TOKENS: Final = 1000


def option(address: str, *, cached_tokens: int = 0, **fields: Any) -> Candidate:
    """An idle endpoint, unless said otherwise, for a prompt of TOKENS tokens."""
    defaults: dict[str, Any] = {
        "model": "m",
        "inflight_requests": 0,
        "inflight_prompt_tokens": 0,
        "pending_prefill_tokens": 0,
        "rtt_ms": 0.0,
        "prefill_ms_per_token": 0.1,
        "decode_ms_per_token": 20.0,
        "output_tokens": 100.0,
        "success_probability": 1.0,
        "attempts": 0,
        "last_chosen": 0,
    }
    cache = {"cached_tokens": cached_tokens, "uncached_tokens": TOKENS - cached_tokens}
    return Candidate(address=address, **defaults | fields | cache)


def prompt(session: str | None = None, prefix: Sequence[int] = ()) -> RequestFacts:
    return msgspec.structs.replace(request(tokens=TOKENS, session=session), prefix=tuple(prefix))


def rank(policy: str, options: Sequence[Candidate], facts: RequestFacts | None = None, **parameters: Any) -> Ranking:
    ranking = build_policy(policy, parameters).rank(facts or prompt(), options, Random(0))
    assert sorted(r.candidate.address for r in ranking.order) == sorted(o.address for o in options)
    return ranking


def best(policy: str, options: Sequence[Candidate], facts: RequestFacts | None = None, **parameters: Any) -> str:
    """The address that the policy puts first."""
    return rank(policy, options, facts, **parameters).order[0].candidate.address


def first(policy: str, options: Sequence[Candidate], **parameters: Any) -> Candidate:
    return rank(policy, options, **parameters).order[0].candidate


# Small ranges, so that ties and the edges of thresholds come up often.
_COUNT = st.one_of(st.integers(0, 3), st.integers(0, 200))
_TOKENS = st.one_of(st.sampled_from([0, 100]), st.integers(0, 10**6))
_CACHED = st.one_of(st.sampled_from([0, 300, 301, 500, 501, TOKENS]), st.integers(0, TOKENS))


@st.composite
def pools(draw: st.DrawFn, hosted: bool = False, cold: bool = False) -> list[Candidate]:
    """One to eight endpoints in any state, no two chosen by the same decision.

    With `hosted`, one may be the host; with `cold`, none has anything of the prompt cached.
    """
    size = draw(st.integers(1, 8))
    turns = draw(st.permutations(range(1, size + 1)))
    host = draw(st.integers(-1, size - 1)) if hosted else -1
    return [
        option(
            f"e{index}:1",
            cached_tokens=0 if cold else draw(_CACHED),
            inflight_requests=draw(_COUNT),
            inflight_prompt_tokens=draw(_TOKENS),
            pending_prefill_tokens=draw(_TOKENS),
            rtt_ms=draw(st.sampled_from([0.0, 0.5, 37.0, 279.0, 456.0])),
            last_chosen=turns[index],
            is_affine=index == host,
            running_requests=draw(_COUNT),
            waiting_requests=draw(_COUNT),
            kv_usage=draw(st.sampled_from([0.0, 0.25, 0.5, 1.0])),
            used_tokens=draw(_TOKENS),
        )
        for index in range(size)
    ]
