"""What is kept between decisions changes none: over any history, as if every endpoint were looked at afresh."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.candidates import Candidate, Standing
from fairlead.core.cost import Prices
from fairlead.core.endpoint import Endpoint, EndpointSpec, Speed
from fairlead.core.facts import RequestFacts, session_key
from fairlead.core.in_flight import InFlight
from fairlead.core.load import Load
from fairlead.core.migration import Rules
from fairlead.core.policy import Decision, Ranking, Refusal
from fairlead.core.pool import FEW, Pool
from fairlead.core.reported import EngineIdentity, EngineReport
from fairlead.core.router import Router
from fairlead.policies import build_policy
from fairlead.policies.fairlead import Fairlead
from tests.core.world import always, carries

MODELS = ("small", "large", "rare")
RIGHT = {"small": always(0.5), "large": always(0.9), "rare": always(1.0)}
CHAINS = ((), (1, 2, 3), (1, 2, 4, 5), (1, 6), (7,))
MOST = FEW + 24

# Few values, so that ties and the edges of thresholds come up often.
at = st.integers(0, MOST - 1)
rtts = st.sampled_from([0.0, 0.5, 1.0, 3.0, 250.0])
weights = st.fixed_dictionaries(
    {name: st.sampled_from([0.0, 0.05, 1.0, 7.3]) for name in ("rtt_weight", "queue_weight", "crowd_weight")}
    | {"stall_weight": st.floats(0, 2), "batch_weight": st.floats(0, 2), "tie_ms": st.sampled_from([0.0, 2.0, 500.0])}
    | {"evict_weight": st.floats(0, 2), "least_answer_tokens": st.sampled_from([0.0, 100.0, 1000.0])}
    | {"adapter_weight": st.sampled_from([0.0, 1.0, 3.3]), "behind_weight": st.sampled_from([0.0, 1.0, 2.5])}
)
speeds = st.builds(
    Speed,
    st.sampled_from([0.05, 0.1]),
    st.sampled_from([5.0, 20.0]),
    st.just(0.015),
    st.sampled_from([64.0, 256.0]),
    fixed_ms=st.sampled_from([0.0, 0.1, 300.0]),
    prefill_growth=st.sampled_from([0.0, 0.0, 6e-5, 1e-3]),
)
loads = st.builds(
    Load,
    st.integers(0, 4),
    st.integers(0, 9999),
    st.sampled_from([0, 500, 70_000]),
    st.integers(0, 4),
    st.sampled_from([0, 70_000**2 // 2]),
)
endpoints = st.tuples(
    st.sampled_from(MODELS[:2] * 3 + MODELS[2:]), rtts, st.sampled_from([None, None, 2000, 9000]), loads, speeds
)
requests = st.builds(
    RequestFacts,
    model=st.sampled_from(["any", "any", "small", "large", None]),
    tokens=st.sampled_from([1, 800, 3000, 20_000]),
    max_output_tokens=st.sampled_from([None, 10, 100, 10**6]),
    language=st.just("en"),
    bucket=st.integers(0, 6),
    attempted=st.sampled_from([(), (), ("small",), ("large", "large")]),
    session=st.sampled_from([None, *[session_key(b"%d" % n) for n in range(3)]]),
    prefix=st.sampled_from(CHAINS),
    block_tokens=st.sampled_from([100.0, 333.3]),
    adapter=st.sampled_from(["", "", "legal", "medical"]),
)
changes = st.one_of(
    st.tuples(st.just("end"), at),
    st.tuples(st.just("token"), at),
    st.tuples(st.just("pass"), st.sampled_from([0.001, 0.2, 9.0])),
    st.tuples(st.just("healthy"), at, st.booleans()),
    st.tuples(st.just("fails"), at),
    st.tuples(st.just("rtt"), at, rtts),
    st.tuples(st.just("spread"), at, st.sampled_from([0.0, 1.0, 40.0])),
    st.tuples(st.just("speed"), at, speeds),
    st.tuples(st.just("peers"), at, loads),
    st.tuples(st.just("carries"), at, loads),
    st.tuples(st.just("restart"), at),
    st.tuples(st.just("adapters"), at, st.sampled_from([(), ("legal",), ("other", "another")])),
    st.tuples(st.just("strangers"), at, st.sampled_from([(0, 0), (3, 0), (9, 40)])),
    st.tuples(st.just("identified"), at, st.sampled_from([None, 500, 5000])),
    st.tuples(st.just("respecified"), at, st.sampled_from(MODELS)),
    st.tuples(st.just("drain"), at),
    st.tuples(st.just("use"), weights),
    st.tuples(st.just("company"), st.booleans()),
)


class History:
    """One router, and all that happens to it."""

    def __init__(self, pool: list[Any], parameters: dict[str, float], *, keeps: bool) -> None:
        made = []
        for number, (model, rtt_ms, length, load, speed) in enumerate(pool):
            spec = EndpointSpec(f"e{number}:1", model, max_model_len=length, capability=RIGHT[model])
            endpoint = Endpoint(spec)
            endpoint.rtt_ms, endpoint.speed = rtt_ms, speed
            endpoint.take(load)
            made.append(endpoint)
        self.pool = Pool(made, {"any": MODELS})
        if not keeps:
            self.pool._tables.clear()
        self.router = Router(
            self.pool,
            build_policy("fairlead", parameters),
            fallbacks=2,
            rng=Random(0),
            rules=Rules(hot_tokens=1000, least_tokens=100, cool_down_s=5.0),
        )
        self.now_s = 100.0
        self.under_way: list[InFlight] = []

    def step(self, kind: str, *what: Any) -> None:
        if kind == "pass":
            self.now_s += what[0]
        elif kind == "use":
            self.router.use(build_policy("fairlead", what[0]))
        elif kind == "company":
            (self.router.others.present,) = what
        elif kind in ("end", "token"):
            if self.under_way:
                in_flight = self.under_way[what[0] % len(self.under_way)]
                if kind == "token":
                    in_flight.first_token(self.now_s)
                else:
                    in_flight.ended(self.now_s)
                    self.under_way.remove(in_flight)
        else:
            self.change(kind, self.pool.endpoints[what[0] % len(self.pool.endpoints)], *what[1:])

    def decide(self, request: RequestFacts, subset: set[int] | None) -> Decision | Refusal:
        addresses = None if subset is None else {f"e{number}:1" for number in subset}
        in_flight = self.router.admit(request, addresses, self.now_s)
        if isinstance(in_flight, Refusal):
            return in_flight
        in_flight.sent(request, self.now_s)
        self.under_way.append(in_flight)
        return in_flight.decision

    def change(self, kind: str, endpoint: Endpoint, value: Any = None) -> None:
        match kind:
            case "healthy":
                endpoint.health.probed(value, self.now_s, 1)
            case "fails":
                endpoint.health.failed(self.now_s)
            case "rtt":
                endpoint.rtt_ms = value
            case "spread":
                endpoint.rtt_spread_ms = value
            case "speed":
                endpoint.speed = value
            case "peers":
                endpoint.peers_reported(value, 0.0)
            case "carries":
                carries(endpoint, **msgspec.structs.asdict(value))
            case "restart":
                endpoint.generation += 1
            case "adapters":
                endpoint.reported(
                    EngineReport(running_requests=1, adapter_slots=2, running_adapters=value, stale=False)
                )
            case "strangers":
                endpoint.usual_prefill_tokens, endpoint.usual_attended_tokens = 500.0, 125_000.0
                running, waiting = value
                for read_s in (1.0, 1.25):
                    endpoint.reported(
                        EngineReport(
                            running_requests=running,
                            waiting_requests=waiting,
                            read_s=read_s,
                            changed_s=read_s,
                            stale=False,
                        )
                    )
            case "identified":
                endpoint.identified(EngineIdentity(max_model_len=value))
            case "respecified":
                endpoint.respecify(
                    msgspec.structs.replace(endpoint.spec, capability=always(0.7), prefill_ms_per_token=0.3)
                )
            case "drain":
                self.router.planner.draining ^= {endpoint.address}


@settings(max_examples=300, deadline=None)
@given(
    st.lists(endpoints, min_size=FEW + 1, max_size=MOST),
    weights,
    st.lists(st.tuples(st.lists(changes, max_size=2), requests, st.none() | st.sets(at, max_size=MOST)), max_size=25),
)
def test_a_decision_is_the_same_with_what_is_kept_as_without(
    pool: list[Any], parameters: dict[str, float], history: list[Any]
) -> None:
    kept, afresh = History(pool, parameters, keeps=True), History(pool, parameters, keeps=False)
    for changed, request, subset in history:
        for change in changed:
            kept.step(*change)
            afresh.step(*change)
        assert kept.decide(request, subset) == afresh.decide(request, subset)
    assert kept.router.policy_failures == afresh.router.policy_failures == 0


@pytest.mark.parametrize("rtt_ms", [0.0, 50.0])
def test_of_endpoints_that_cost_the_same_the_least_recently_chosen_are_the_first(rtt_ms: float) -> None:
    """All of a pool that is idle, and more of them than a decision shows."""
    pool = [("small", 0.0 if number % 2 else rtt_ms, None, Load(), Speed(0.1, 20.0)) for number in range(MOST)]
    kept, afresh = History(pool, {}, keeps=True), History(pool, {}, keeps=False)
    asked = RequestFacts("any", 100, None, "en", 0)
    for _ in range(3 * MOST):
        assert kept.decide(asked, None) == afresh.decide(asked, None)
        for history in (kept, afresh):
            history.under_way.pop().withdraw(0.0)


def test_a_prefill_that_is_due_is_noticed_where_nothing_else_changed() -> None:
    """20,000 tokens take two seconds; after that their endpoint is as good as any."""
    pool = [("small", 0.0, None, Load(), Speed(0.1, 20.0)) for _ in range(MOST)]
    kept, afresh = History(pool, {"tie_ms": 0.0}, keeps=True), History(pool, {"tie_ms": 0.0}, keeps=False)
    asked = RequestFacts("any", 20_000, 1, "en", 0)
    for _ in range(3 * MOST):
        assert kept.decide(asked, None) == afresh.decide(asked, None)
        kept.now_s = afresh.now_s = kept.now_s + 0.3
    assert sum(e.load.decoding_requests for e in kept.pool.endpoints) > MOST


def test_a_session_moves_to_an_endpoint_that_is_not_among_the_best() -> None:
    far = MOST - 1
    pool = [
        ("small", number * 5.0, None, Load(0, 0, 500 * (number != far)), Speed(0.1, 20.0)) for number in range(MOST)
    ]
    decided = []
    for keeps in (True, False):
        history = History(pool, {"queue_weight": 0.0, "tie_ms": 0.0}, keeps=keeps)
        asked = RequestFacts("any", 800, 10, "en", 0, session=session_key(b"s"))
        history.decide(asked, None)
        history.under_way.pop().ended(history.now_s)
        carries(history.pool.endpoints[0], pending_prefill_tokens=70_000)
        decided.append(history.decide(asked, None))
    assert decided[0] == decided[1]
    assert isinstance(decided[0], Decision)
    assert (decided[0].why, decided[0].addresses[0]) == ("migration", f"e{far}:1")


class Backwards(Fairlead, frozen=True):
    """A rule that extends one with prices, and ranks by something else."""

    def rank(self, request: RequestFacts, candidates: Sequence[Candidate], rng: Random) -> Ranking:
        ranking = super().rank(request, candidates, rng)
        return Ranking(list(ranking.order)[::-1])


def test_a_rule_that_ranks_in_its_own_way_is_not_ranked_by_the_prices_of_what_it_extends() -> None:
    pool = [("small", float(number), None, Load(), Speed(0.1, 20.0)) for number in range(MOST)]
    history = History(pool, {}, keeps=True)
    history.router.use(Backwards(tie_ms=0.0))
    decision = history.decide(RequestFacts("any", 100, None, "en", 0), None)
    assert isinstance(decision, Decision)
    assert decision.addresses[0] == f"e{MOST - 1}:1"


class Broken(Fairlead, frozen=True):
    def prices(self, at: Candidate | Standing) -> Prices:
        if at.rtt_ms == 5.0:
            raise ZeroDivisionError
        return super().prices(at)


def test_prices_that_raise_cost_a_request_nothing_but_the_advice() -> None:
    pool = [("small", float(number), None, Load(number % 3 + 1), Speed(0.1, 20.0)) for number in range(MOST)]
    history = History(pool, {}, keeps=True)
    history.router.use(Broken(tie_ms=0.0))
    decision = history.decide(RequestFacts("any", 100, None, "en", 0), None)
    assert isinstance(decision, Decision)
    assert decision.why == "fallback"
    assert "ZeroDivisionError" in history.router.last_policy_failure
    history.pool.endpoints[5].rtt_ms = 4.0
    decision = history.decide(RequestFacts("any", 100, None, "en", 0), None)
    assert isinstance(decision, Decision)
    assert decision.why == "cost"
