"""The policy that is in force: it ranks the endpoints of each request, and its tuner observes how that went.

A policy is a plug-in: what it raises, or leaves out, costs the request only its advice. Such a request goes where the
load is least, and the failure is counted and kept for the log.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from fairlead.core.adapter_slots import AdapterNeed
from fairlead.core.candidates import Candidate, candidates, least_inflight
from fairlead.core.cost import cost_factor
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Decision, Outcome, Policy, Priced, Ranked, Ranking, Tuner, Why, is_priced
from fairlead.core.price_table import PriceTable
from fairlead.core.ranking import first_in_order, least_first
from fairlead.core.rendezvous import OtherRouters, turns_by

_SHOWN_CANDIDATES: Final = 8  # of a decision, in the log; a decision over 1,000 endpoints must not keep 1,000 costs


class Options(NamedTuple):
    """What a policy chooses from: the endpoints that the request may go to, and what is known of it at each.

    `table` holds them where the pool keeps one; `cached_tokens` and `needs` are by address.
    """

    request: RequestFacts
    table: PriceTable | None
    endpoints: Sequence[Endpoint]
    cached_tokens: Mapping[str, int]
    target: str | None  # the session's endpoint
    needs: Mapping[str, AdapterNeed]
    to_come: float  # later requests that its prefill delays: see `core.congestion`
    cached_blocks: Mapping[str, int] | None = None  # by address; None: not for the prompt to choose by, if they tie

    @property
    def delayed_requests(self) -> float:
        """By its prefill, wherever it goes."""
        return least_inflight(self.endpoints) + self.to_come


class Advice:
    """`policy` may be replaced between two decisions (`use`); `decided` counts the requests so far."""

    others: OtherRouters

    def __init__(self, policy: Policy, fallbacks: int, rng: Random) -> None:
        self.fallbacks = fallbacks
        self.policy_failures = 0
        self.last_policy_failure = ""
        self.decided = 0
        self._rng = rng
        self.use(policy)

    def use(self, policy: Policy, tuner: Tuner | None = None) -> None:
        """Decide by `policy` from now on; `tuner` may change its weights, else the tuner that the policy names."""
        self.policy = policy
        self.tuner = tuner if tuner is not None else policy.tuner(self._rng)

    def feedback(self, decision: Decision, outcome: Outcome, now_s: float) -> None:
        """`decision` has ended: pass its outcome to the tuner."""
        try:
            policy = self.tuner.observe(decision, outcome, self.decided, now_s)
        except Exception:  # as in `rank`: counted, and the weights stay as they are
            self.last_policy_failure = traceback.format_exc(limit=-8)
            self.policy_failures += 1
            return
        if policy is not None:
            self.policy = policy

    def rank(self, options: Options) -> tuple[Ranking, tuple[Ranked, ...]]:
        """A body that is not read gives a policy nothing to go by: such a request goes where the load is least."""
        policy = self.policy
        request, table, endpoints, cached_tokens, target, needs, _, _ = options
        if not request.unread and table is not None and is_priced(policy):
            try:
                return self._shortlist(policy, table, options)
            except Exception:  # as below
                self.last_policy_failure = traceback.format_exc(limit=-8)
                self.policy_failures += 1
        offered = candidates(endpoints, request, cached_tokens, target, options.delayed_requests, needs)
        if request.unread:
            return Ranking(least_first(offered, _untried_and_idle), "fallback"), ()
        try:
            ranking = policy.rank(request, offered, self._rng)
            if len(ranking.order) == len(offered):
                if self._meets(options) and is_priced(policy):
                    ranking = self._met(policy, ranking, options)
                return ranking, tuple(ranking.order[:_SHOWN_CANDIDATES])
            self.last_policy_failure = (
                f"{type(policy).__name__} ranked {len(ranking.order)} of {len(offered)} candidates"
            )
        except Exception:  # a bug in a policy must not fail the request: serve it, keep the cause for the log
            self.last_policy_failure = traceback.format_exc(limit=-8)
        self.policy_failures += 1
        return Ranking(least_first(offered, _untried_and_idle), "fallback"), ()

    def _shortlist(self, policy: Priced, table: PriceTable, options: Options) -> tuple[Ranking, tuple[Ranked, ...]]:
        """The ranking down to what is shown, and to the fallbacks of the model that comes first."""
        request, _, endpoints, cached_tokens, target, needs, to_come, _ = options
        costs_ms, spreads, delayed = table.scores(policy, request, endpoints, cached_tokens, needs, to_come)
        width, fallbacks = policy.tie_ms, self.fallbacks + 2  # a move may put one more first
        best, block = None, None
        if self._meets(options):
            cheapest = endpoints[min(range(len(costs_ms)), key=costs_ms.__getitem__)]
            (best,) = candidates([cheapest], request, cached_tokens, target, delayed, needs)
            width, block = self._equals_ms(policy, best), _next_block(options, best)
        count = max(_SHOWN_CANDIDATES, fallbacks)
        order = first_in_order(costs_ms, endpoints, count, tie_width=width, spreads=spreads, block=block)
        model = endpoints[order[0]].model
        if any(endpoints[i].model != model for i in order):
            same, least_ms = [i for i, e in enumerate(endpoints) if e.model == model], min(costs_ms)
            theirs, those = [costs_ms[i] for i in same], [endpoints[i] for i in same]
            spread = None if spreads is None else [spreads[i] for i in same]
            first = first_in_order(
                theirs, those, fallbacks, tie_width=width, spreads=spread, least=least_ms, block=block
            )
            order += [same[i] for i in first if same[i] not in order]
        offered = candidates([endpoints[i] for i in order], request, cached_tokens, target, delayed, needs)
        ranked = [Ranked(option, costs_ms[i]) for option, i in zip(offered, order, strict=True)]
        return Ranking(ranked, _why(offered[0], best)), tuple(ranked[:_SHOWN_CANDIDATES])

    def _meets(self, options: Options) -> bool:
        """Whether a prompt chooses among equals, as other routers may send some that begin like it."""
        return self.others.present and options.cached_blocks is not None and bool(options.request.prefix)

    def _equals_ms(self, policy: Priced, best: Candidate) -> float:
        """How much more than the `best` its equals may cost: what is saved if another router was there before."""
        _, _, _, prefill_ms, contention_ms, _, _ = policy.prices(best)
        prefill_ms = best.work_tokens * (prefill_ms + best.delayed_requests * contention_ms)
        factor = cost_factor(best.success_probability, policy.retry_penalty, best.attempts)
        return max(policy.tie_ms, self.others.chance * prefill_ms * factor)

    def _met(self, policy: Priced, ranking: Ranking, options: Options) -> Ranking:
        """As `_shortlist` ranks, of a ranking in which equals took turns by when each was last chosen."""
        keys = {endpoint.address: endpoint.key for endpoint in options.endpoints}
        places = {address: place for place, address in enumerate(keys)}
        best = min(ranking.order, key=lambda ranked: (ranked.score, places[ranked.candidate.address]))
        limit, block = best.score + self._equals_ms(policy, best.candidate), _next_block(options, best.candidate)
        equal: list[Ranked] = []
        others: list[Ranked] = []
        for ranked in ranking.order:
            c = ranked.candidate
            spread = policy.prices(c)[-1] / c.success_probability
            (equal if ranked.score - spread <= limit else others).append(ranked)
        turns = turns_by([keys[ranked.candidate.address] for ranked in equal], block)
        equal = [equal[i] for _, i in sorted(zip(turns, range(len(equal)), strict=True))]
        return Ranking([*equal, *others], _why(equal[0].candidate, best.candidate))


def _next_block(options: Options, best: Candidate) -> int:
    """The first block of the prompt that the `best` has not cached, or its last."""
    chain, cached = options.request.prefix, options.cached_blocks or {}
    return chain[min(cached.get(best.address, 0), len(chain) - 1)]


def _why(chosen: Candidate, best: Candidate | None) -> Why:
    """`best` is the cheapest of those among which the prompt chose, if it did."""
    if best is not None and chosen.address != best.address:
        return "rendezvous"
    return "affinity" if chosen.is_affine else "cost"


def _untried_and_idle(candidate: Candidate) -> float:
    return candidate.attempts * 1e6 + candidate.inflight_requests
