"""The router: facts in, a decision out, and the load of the chosen endpoint taken in the same step.

`decide` never raises for anything that a request says, and a policy that raises costs the request nothing but the
policy's advice. The caller passes the clock; the server and the simulator call the same code.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Sequence
from random import Random
from typing import Literal

import msgspec

from fairlead.core.cost import CostTerms
from fairlead.core.facts import RequestFacts
from fairlead.core.ledger import Ticket
from fairlead.core.pool import Candidate, Endpoint, Pool, candidates, fitting
from fairlead.core.ranking import Policy, Ranked, Why, least_first

SHOWN_CANDIDATES = 8  # of a decision, in the log; a decision over 1,000 endpoints must not keep 1,000 costs


class Choice(msgspec.Struct, frozen=True, gc=False):
    """One candidate of a decision, for people: its score under the policy and, where it has one, its cost in terms."""

    address: str
    model: str
    score: float
    terms: CostTerms | None


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes and why. `addresses` holds the choice and, after it, the fallbacks of the same model."""

    addresses: tuple[str, ...]
    model: str
    why: Why
    ticket: Ticket
    queued_tokens: int  # waiting for prefill at the chosen endpoint before this request
    rtt_ms: float
    considered: int
    best: tuple[Choice, ...]


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why no endpoint can be given."""

    reason: Literal["unknown_model", "no_endpoint"]


class Router:
    """Decides over one pool with one policy; both may be replaced between two decisions."""

    def __init__(self, pool: Pool, policy: Policy, *, fallbacks: int, rng: Random) -> None:
        self.pool = pool
        self.policy = policy
        self.fallbacks = fallbacks
        self.policy_failures = 0
        self.last_policy_failure = ""
        self._rng = rng
        self._decisions = 0

    def decide(
        self, request: RequestFacts, subset: Collection[str] | None = None, now_s: float = 0.0
    ) -> Decision | Refusal:
        """Choose an endpoint for `request`, out of `subset` where the gateway gave one, and take its load."""
        if not self.pool.knows(request.model):
            return Refusal("unknown_model")
        endpoints = fitting(self.pool.available(request.model, subset), request)
        if not endpoints:
            return Refusal("no_endpoint")
        for endpoint in endpoints:
            endpoint.prefills.settle(now_s)
        options = candidates(endpoints, request, {})
        ranked, why, best = self._rank(request, options)
        first = ranked[0].candidate
        addresses = [first.address]
        for r in ranked[1:]:
            if len(addresses) > self.fallbacks:
                break
            if r.candidate.model == first.model:  # the body names the model, so a fallback must serve it too
                addresses.append(r.candidate.address)
        chosen = self.pool.by_address[first.address]
        ticket = self._take(chosen, request.tokens, first.uncached_tokens)
        chosen.prefills.expect(ticket, chosen.prefill_ms_per_token * first.uncached_tokens, now_s)
        return Decision(
            tuple(addresses), first.model, why, ticket, first.pending_prefill_tokens, first.rtt_ms, len(options), best
        )

    def decide_unread(self, subset: Collection[str] | None = None) -> Decision | Refusal:
        """Choose any healthy endpoint for a request that is not read: the one with the fewest requests."""
        endpoints = self.pool.available(None, subset)
        if not endpoints:
            return Refusal("no_endpoint")
        endpoints.sort(key=_load)
        first = endpoints[0]
        addresses = tuple([endpoint.address for endpoint in endpoints[: 1 + self.fallbacks]])
        return Decision(addresses, first.model, "fallback", self._take(first, 0, 0), 0, 0.0, len(endpoints), ())

    def _rank(
        self, request: RequestFacts, options: list[Candidate]
    ) -> tuple[Sequence[Ranked], Why, tuple[Choice, ...]]:
        policy = self.policy
        try:
            ranked, why = policy.rank(request, options, self._rng)
            best = [
                Choice(option.address, option.model, score, policy.explain(request, option))
                for option, score in ranked[:SHOWN_CANDIDATES]
            ]
            if len(ranked) == len(options):
                return ranked, why, tuple(best)
            self.last_policy_failure = f"{type(policy).__name__} ranked {len(ranked)} of {len(options)} candidates"
        except Exception:  # a fault of ours must not be the client's: serve the request, keep the cause for the log
            self.last_policy_failure = traceback.format_exc(limit=-8)
        self.policy_failures += 1
        return least_first(options, _untried_and_idle), "fallback", ()

    def _take(self, endpoint: Endpoint, tokens: int, uncached_tokens: int) -> Ticket:
        self._decisions += 1
        endpoint.last_chosen = self._decisions
        return Ticket(endpoint, tokens, uncached_tokens)


def _untried_and_idle(candidate: Candidate) -> float:
    return candidate.attempts * 1e6 + candidate.inflight_requests


def _load(endpoint: Endpoint) -> tuple[int, int]:
    return endpoint.inflight_requests, endpoint.last_chosen
