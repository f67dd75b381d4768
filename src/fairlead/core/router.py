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
from fairlead.core.feedback import Outcome, Tuner
from fairlead.core.ledger import Ticket
from fairlead.core.migration import NO_HOST_IS_HOT, Planner, Rules
from fairlead.core.moves import Move, Stay
from fairlead.core.pool import Candidate, Endpoint, Pool, candidates, fitting
from fairlead.core.prefix_index import PrefixIndex
from fairlead.core.ranking import Policy, Ranked, Why, least_first
from fairlead.core.sessions import SessionTable

FlipRefused = Literal["target_restarted", "target_unhealthy", "session_gone"]

SHOWN_CANDIDATES = 8  # of a decision, in the log; a decision over 1,000 endpoints must not keep 1,000 costs


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Where a request goes and why. `addresses` holds the choice and, after it, the fallbacks of the same model."""

    addresses: tuple[str, ...]
    model: str
    why: Why
    ticket: Ticket
    cached_tokens: int  # of the prompt, at the chosen endpoint
    queued_tokens: int  # waiting for prefill there before this request
    rtt_ms: float
    considered: int
    best: tuple[Ranked, ...]  # candidates, for people
    policy: Policy  # that ranked them
    decided_s: float
    number: int  # of this router's decisions, from 1
    form: int = 0  # of the prompt, where it could take others; 0 is the request's own
    form_tokens: int = 0  # cached at the chosen endpoint in this form, beyond those of the request's own
    migration: Move | Stay | None = None  # of the request's session; None: nothing spoke for a move
    strayed: bool = False  # to where its own context is, though its session has moved elsewhere

    def terms(self, ranked: Ranked) -> CostTerms | None:
        """The cost of one of the best in terms, where the policy has one; not needed to decide, so made when asked."""
        return self.policy.explain(ranked.candidate)


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why no endpoint can be given."""

    reason: Literal["unknown_model", "no_endpoint"]


class Router:
    """Decides over one pool with one policy; both may be replaced between two decisions (`pool`, `use`)."""

    def __init__(
        self,
        pool: Pool,
        policy: Policy,
        *,
        fallbacks: int,
        rng: Random,
        index: PrefixIndex | None = None,
        sessions: SessionTable | None = None,
        rules: Rules = NO_HOST_IS_HOT,
    ) -> None:
        self.pool = pool
        self.fallbacks = fallbacks
        self.index = index if index is not None else PrefixIndex()
        self.sessions = sessions if sessions is not None else SessionTable()
        self.planner = Planner(rules, self.sessions)
        self.policy_failures = 0
        self.last_policy_failure = ""
        self._rng = rng
        self._decisions = 0
        self.use(policy)

    def use(self, policy: Policy, tuner: Tuner | None = None) -> None:
        """Decide by `policy` from now on; `tuner` may change its weights, else the tuner that the policy names."""
        self.policy = policy
        self.tuner = tuner if tuner is not None else policy.tuner(self._rng)

    def decide(
        self,
        request: RequestFacts,
        subset: Collection[str] | None = None,
        now_s: float = 0.0,
        others: Sequence[Sequence[int]] = (),
    ) -> Decision | Refusal:
        """Choose an endpoint for `request`, out of `subset` where the gateway gave one, and take its load.

        `others` are the prefix chains of other forms that the same prompt could take (context reuse). An endpoint's
        cost only falls with what it has cached, so ranking each with the form that it holds most of chooses the best
        pair of endpoint and form. When the request does go there, `commit` must follow.
        """
        if not self.pool.knows(request.model):
            return Refusal("unknown_model")
        endpoints = fitting(self.pool.available(request.model, subset), request)
        if not endpoints:
            return Refusal("no_endpoint")
        for endpoint in endpoints:
            if endpoint.inflight_requests:
                endpoint.prefills.settle(now_s)
            if endpoint.generation != endpoint.indexed_generation:  # it restarted: what it had cached is gone
                endpoint.indexed_generation = endpoint.generation
                self.index.forget(endpoint.address)
        own = held = self.index.match(request.prefix, now_s) if request.prefix else {}
        forms: dict[str, int] = {}  # by address, where another form has more blocks cached
        if others:
            held = dict(own)
            for form, chain in enumerate(others, 1):
                for address, blocks in self.index.match(chain, now_s).items():
                    if blocks > held.get(address, 0):
                        held[address] = blocks
                        forms[address] = form
        cached_tokens = {address: int(blocks * request.block_tokens) for address, blocks in held.items()}
        bound = self._host(request, now_s)
        host = bound if bound is None else self.planner.home(request, bound, endpoints, cached_tokens)
        if self.planner.draining:
            endpoints = self.planner.spared(endpoints, host)
        options = candidates(endpoints, request, cached_tokens, host)
        ranked, why, best = self._rank(request, options)
        first = ranked[0].candidate
        cached, migration = first.cached_tokens, None
        if first.is_host:
            migration = self.planner.consider(
                request, self.pool.by_address[first.address], endpoints, cached_tokens, now_s
            )
            if isinstance(migration, Move) and migration.redirects:
                why, target = "migration", migration.target
                ranked = sorted(ranked, key=lambda r: r.candidate.address != target)
                best = tuple(sorted(best, key=lambda r: r.candidate.address != target))
                first = ranked[0].candidate
                cached = migration.tokens if migration.how == "pull" else first.cached_tokens
        uncached = request.tokens - cached
        addresses = [first.address]
        for r in ranked[1:]:
            if len(addresses) > self.fallbacks:
                break
            if r.candidate.model == first.model:  # the body names the model, so a fallback must serve it too
                addresses.append(r.candidate.address)
        chosen = self.pool.by_address[first.address]
        ticket = self._take(chosen, request.tokens, uncached)
        chosen.prefills.settle(now_s)  # forget those that ended
        chosen.prefills.expect(ticket, chosen.prefill_ms_per_token * uncached, now_s)
        return Decision(  # sixteen names would take five times as long as sixteen places
            tuple(addresses),
            first.model,
            why,
            ticket,
            cached,
            first.pending_prefill_tokens,
            first.rtt_ms,
            len(options),
            best,
            self.policy,
            now_s,
            self._decisions,
            forms.get(first.address, 0) if forms else 0,
            int((held.get(first.address, 0) - own.get(first.address, 0)) * request.block_tokens) if forms else 0,
            migration,
            host != bound and first.is_host,
        )

    def withdraw(self, decision: Decision, now_s: float) -> None:
        """The request goes nowhere after all."""
        decision.ticket.release()
        if isinstance(decision.migration, Move) and not decision.migration.redirects:
            self.planner.ended(decision.migration, now_s, "dropped")

    def commit(self, request: RequestFacts, address: str, now_s: float, *, binds: bool = True) -> None:
        """`request` goes to `address`: its prompt will be cached there; if it `binds`, its session lives there now."""
        if request.prefix:
            self.index.insert(request.prefix, address, now_s)
            endpoint = self.pool.by_address.get(address)
            if endpoint is not None:
                endpoint.indexed_blocks = self.index.blocks(address)
        if binds and request.session is not None and self.sessions.address_of(request.session) != address:
            self.sessions.bind(request.session, address, now_s)

    def never_came(self, request: RequestFacts, decision: Decision) -> None:
        """The first choice failed before it answered: what `commit` said of its cache is taken back."""
        if request.prefix:
            held_blocks = round(decision.cached_tokens / request.block_tokens)
            self.index.never_came(request.prefix, decision.addresses[0], held_blocks, decision.decided_s)

    def flip(self, move: Move, request: RequestFacts, copied_share: float, now_s: float) -> FlipRefused | None:
        """The target holds this share of the prompt of `request`, which caused `move`: the session lives there now.

        Or why not; then nothing has changed. `planner.ended` must follow either way.
        """
        target = self.pool.by_address.get(move.target)
        if target is None or target.generation != move.target_generation:
            return "target_restarted"
        if not target.healthy:
            return "target_unhealthy"
        if not self.sessions.flip(move.session, move.bound, move.target, now_s):
            return "session_gone"
        held = int(len(request.prefix) * copied_share)
        self.commit(msgspec.structs.replace(request, prefix=request.prefix[:held]), move.target, now_s)
        return None

    def feedback(self, decision: Decision, outcome: Outcome, now_s: float) -> None:
        """`decision` has ended: whoever tunes the weights hears of it."""
        if self.tuner is None:
            return
        try:
            policy = self.tuner.heard(decision, outcome, self._decisions, now_s)
        except Exception:  # as in `_rank`: counted, and the weights stay as they are
            self.last_policy_failure = traceback.format_exc(limit=-8)
            self.policy_failures += 1
            return
        if policy is not None:
            self.policy = policy

    def _host(self, request: RequestFacts, now_s: float) -> str | None:
        """Where the session lives, unless its model has already answered this request wrongly."""
        if request.session is None:
            return None
        host = self.sessions.host(request.session, now_s)
        if host is None or not request.attempted:
            return host
        endpoint = self.pool.by_address.get(host)
        return None if endpoint is None or endpoint.model in request.attempted else host

    def decide_unread(self, subset: Collection[str] | None = None) -> Decision | Refusal:
        """Choose any healthy endpoint for a request that is not read: the one with the fewest requests."""
        endpoints = self.pool.available(None, subset)
        if not endpoints:
            return Refusal("no_endpoint")
        endpoints.sort(key=_load)
        first = endpoints[0]
        addresses = tuple([endpoint.address for endpoint in endpoints[: 1 + self.fallbacks]])
        ticket = self._take(first, 0, 0)
        return Decision(
            addresses, first.model, "fallback", ticket, 0, 0, 0.0, len(endpoints), (), self.policy, 0.0, self._decisions
        )

    def _rank(
        self, request: RequestFacts, options: list[Candidate]
    ) -> tuple[Sequence[Ranked], Why, tuple[Ranked, ...]]:
        policy = self.policy
        try:
            ranked, why = policy.rank(request, options, self._rng)
            if len(ranked) == len(options):
                return ranked, why, tuple(ranked[:SHOWN_CANDIDATES])
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
