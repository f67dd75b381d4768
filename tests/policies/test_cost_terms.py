"""The cost that is shown is the cost that was ranked by: the terms of every candidate add up to its score."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.load import Load
from fairlead.core.policy import NO_TUNER
from fairlead.core.reported import EngineReport
from fairlead.policies import build_policy
from tests.core.world import World
from tests.policies.options import TOKENS, best, first, option

loads = st.builds(Load, st.integers(0, 50), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 50))
endpoints = st.fixed_dictionaries(
    {
        "own": loads,
        "peers": loads,
        "right": st.floats(0.01, 1.0),
        "rtt_ms": st.floats(0.0, 300.0),
        "prefill_ms_per_token": st.floats(0.001, 2.0),
        "decode_ms_per_token": st.floats(0.1, 100.0),
        "fixed_ms": st.sampled_from([0.0, 1.0, 700.0]),
        "adapters_in_use": st.sampled_from([(), ("legal",), ("medical",), ("medical", "other"), ("a", "b", "c")]),
    }
)
fairlead_weights = st.fixed_dictionaries(
    {
        name: st.floats(0.0, 8.0)
        for name in (
            "rtt_weight",
            "queue_weight",
            "behind_weight",
            "crowd_weight",
            "stall_weight",
            "evict_weight",
            "batch_weight",
        )
    }
    | {"least_answer_tokens": st.floats(0.0, 2000.0), "adapter_weight": st.floats(0.0, 8.0)}
)
laar_weights = st.fixed_dictionaries({"alpha": st.floats(0.0, 8.0)})


def loaded(policy: str, weights: Mapping[str, Any], pool: list[dict[str, Any]]) -> World:
    world = World(policy, **weights)
    for number, fields in enumerate(pool):
        own = {name: getattr(fields["own"], name) for name in Load.__struct_fields__}
        rest = {k: v for k, v in fields.items() if k not in ("own", "adapters_in_use", "fixed_ms")}
        endpoint = world.endpoint(f"e{number}:1", f"m{number % 3}", **own, **rest)
        endpoint.speed = msgspec.structs.replace(endpoint.speed, fixed_ms=fields["fixed_ms"])
        used = fields["adapters_in_use"]
        endpoint.reported(EngineReport(running_requests=1, adapter_slots=2, running_adapters=used, stale=False))
    return world


@pytest.mark.parametrize(("policy", "weights"), [("fairlead", fairlead_weights), ("laar", laar_weights)])
def test_the_terms_of_every_candidate_add_up_to_its_score(policy: str, weights: Any) -> None:
    @given(
        weights,
        st.lists(endpoints, min_size=1, max_size=8),
        st.integers(1, 10**5),
        st.integers(0, 3),
        st.sampled_from(["", "legal"]),
    )
    def check(weights: dict[str, float], pool: list[dict[str, Any]], tokens: int, attempts: int, adapter: str) -> None:
        decision = loaded(policy, weights, pool).pick(tokens=tokens, attempted=["m1"] * attempts, adapter=adapter)
        for ranked in decision.best:
            terms = decision.terms(ranked)
            assert terms is not None
            assert terms.total_ms() == pytest.approx(ranked.score)

    check()


def test_each_cause_of_the_cost_is_a_term_of_it() -> None:
    """By hand: 2 ms there and back, 30 for any request, 1,000 tokens not cached, 500 waiting, 3 in flight, 2 of which
    decode, 100 tokens to decode.

    Answers are 256 tokens long on average, which is 44 below the least that a request in flight counts for.
    """
    weights: dict[str, Any] = {"crowd_weight": 1.0, "stall_weight": 0.5, "evict_weight": 0.25, "batch_weight": 2.0}
    world = World("fairlead", queue_weight=1.0, behind_weight=0.75, least_answer_tokens=300.0, **weights)
    endpoint = world.endpoint(
        "a:1", right=0.5, rtt_ms=2.0, prefill_ms_per_token=0.1, decode_ms_per_token=10.0,
        inflight_requests=3, decoding_requests=2, pending_prefill_tokens=500,
    )  # fmt: skip
    endpoint.speed = msgspec.structs.replace(endpoint.speed, fixed_ms=30.0)
    decision = world.pick(tokens=1000, max_output_tokens=100)
    candidate = decision.best[0].candidate
    beside = 2.0 * candidate.batch_slowdown * 3
    terms = decision.terms(decision.best[0])
    assert terms is not None
    assert terms.rtt_ms == 2.0
    assert terms.fixed_ms == 30.0
    assert terms.prefill_ms == pytest.approx(0.1 * 1000 * (1 + 0.25 + 3 + 0.5 * 2 + 0.75 * 1))
    assert terms.queue_ms == pytest.approx(0.1 * 500 + 10.0 * beside * (300 - 256))
    assert terms.decode_ms == pytest.approx(10.0 * 100 * (1 + beside))
    latency_ms = terms.rtt_ms + terms.fixed_ms + terms.prefill_ms + terms.queue_ms + terms.decode_ms
    assert terms.total_ms() == pytest.approx(latency_ms / 0.5)


def test_loading_an_adapter_counts_as_prefill_that_takes_as_long_after_the_wait_for_a_slot() -> None:
    """By hand: 150 ms are 1,500 tokens; 2 in flight decode; both slots are free after 2/3 of an answer."""
    world = World("fairlead", crowd_weight=1.0, stall_weight=0.5, adapter_weight=2.0)
    endpoint = world.endpoint(
        "a:1", prefill_ms_per_token=0.1, decode_ms_per_token=10.0, inflight_requests=2, decoding_requests=2
    )
    endpoint.speed = msgspec.structs.replace(endpoint.speed, adapter_load_ms=150.0, answer_tokens=100.0)
    used = ("a", "b", "c")
    endpoint.reported(EngineReport(running_requests=1, adapter_slots=2, running_adapters=used, stale=False))
    decision = world.pick(adapter="legal")
    terms = decision.terms(decision.best[0])
    assert terms is not None
    wait_ms = 2 / 3 * 100 * 10.0 * (1 + 2 * endpoint.speed.batch_slowdown)
    assert terms.adapter_ms == pytest.approx(2.0 * (wait_ms + 1500 * 0.1 * (1 + 2 * 1.0 + 2 * 0.5)))


def test_a_prefill_stalls_those_that_decode_and_not_those_that_wait() -> None:
    waiting = option("waiting:1", inflight_requests=3)
    decoding = option("decoding:1", inflight_requests=3, decoding_requests=3)
    assert best("fairlead", [decoding, waiting], stall_weight=1.0, behind_weight=0.0) == "waiting:1"


def test_nobody_waits_behind_a_prefill_while_another_endpoint_computes_their_own() -> None:
    waiting = option("waiting:1", inflight_requests=3)
    awaited = option("awaited:1", inflight_requests=3, awaited_requests=3)
    assert best("fairlead", [waiting, awaited], behind_weight=1.0) == "awaited:1"


def test_a_prefill_delays_those_that_will_wait_behind_it_and_a_cached_prompt_nobody() -> None:
    """As many as wait before it: 3 more short prompts that wait delay it by 30 ms less than one long one."""
    few = option("few:1", inflight_requests=1, pending_prefill_tokens=900)
    many = option("many:1", inflight_requests=4, pending_prefill_tokens=600)
    alone: dict[str, Any] = {"batch_weight": 0.0}  # nothing but prefill
    assert best("fairlead", [many, few], behind_weight=0.0, **alone) == "many:1"
    assert best("fairlead", [many, few], behind_weight=1.0, **alone) == "few:1"
    cached = [msgspec.structs.replace(each, cached_tokens=TOKENS, uncached_tokens=0) for each in (many, few)]
    assert best("fairlead", cached, behind_weight=1.0, **alone) == "many:1"


def test_where_answers_are_short_a_request_in_flight_still_counts() -> None:
    """For an answer of 10 tokens, 8 requests in flight add 48 ms; 600 cached tokens save 60."""
    short: dict[str, Any] = {"output_tokens": 10.0, "answer_tokens": 10.0}
    options = [option("busy:1", inflight_requests=8, cached_tokens=600, **short), option("idle:1", **short)]
    assert best("fairlead", options, least_answer_tokens=0.0, behind_weight=0.0) == "busy:1"
    assert best("fairlead", options, least_answer_tokens=256.0, behind_weight=0.0) == "idle:1"


def test_of_engines_that_differ_only_in_what_each_request_takes_the_quicker_one_is_chosen() -> None:
    """300 ms for any request are 3,000 uncached tokens; beyond that the slower one is better."""
    fixed = option("fixed:1", fixed_ms=300.0)
    assert best("fairlead", [fixed, option("none:1", last_chosen=9)]) == "none:1"
    assert best("fairlead", [fixed, option("none:1", pending_prefill_tokens=2900)]) == "none:1"
    assert best("fairlead", [fixed, option("none:1", pending_prefill_tokens=3100)]) == "fixed:1"


def test_what_each_request_takes_delays_nobody_else_and_so_counts_once() -> None:
    busy = {"inflight_requests": 4, "decoding_requests": 4, "delayed_requests": 4}
    terms = [first("fairlead", [option("a:1", fixed_ms=ms, **busy)]) for ms in (0.0, 300.0)]
    costs = [build_policy("fairlead", {}).explain(each) for each in terms]
    assert costs[0] is not None
    assert costs[1] is not None
    assert costs[1].total_ms() - costs[0].total_ms() == pytest.approx(300.0)


def test_what_a_prompt_evicts_counts_for_each_token_that_is_computed() -> None:
    """100 ms away, 1,000 tokens that are not computed there save 100 ms, and twice that if each evicts another."""
    options = [option("far:1", cached_tokens=1000, rtt_ms=150.0), option("near:1")]
    assert best("fairlead", options, evict_weight=0.0) == "near:1"
    assert best("fairlead", options, evict_weight=1.0) == "far:1"


def test_a_model_that_was_wrong_costs_the_penalty_once_for_each_attempt() -> None:
    policy = build_policy("fairlead", {"retry_penalty": 10.0})
    world = World("fairlead", retry_penalty=10.0)
    world.endpoint("a:1", "m")
    costs = [world.pick(attempted=["m"] * n).best[0].score for n in range(1)]
    again = World("fairlead", retry_penalty=10.0)
    again.endpoint("a:1", "m")
    assert again.pick(attempted=["m", "m"]).best[0].score == pytest.approx(100.0 * costs[0])
    assert policy.tuner(Random(0)) is NO_TUNER
