"""The router: facts in, a decision out, and the load of the chosen endpoint taken in the same step.

`admit` never raises for anything that a request says, and a policy that raises costs the request only the
policy's advice. The caller passes the clock; the server and the simulator call the same code.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Mapping, Sequence
from math import inf
from random import Random
from typing import Final, cast

from fairlead.core.adapter_slots import AdapterNeed, adapter_needs
from fairlead.core.candidates import NO_NEEDS, Candidate, candidates, fitting
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.hop import Hop
from fairlead.core.in_flight import InFlight
from fairlead.core.ledger import Ticket
from fairlead.core.migration import NOTHING_IS_HOT, Rules
from fairlead.core.moves import Move
from fairlead.core.placement import Placement
from fairlead.core.policy import Decision, Outcome, Policy, Priced, Ranked, Ranking, Refusal, Tuner, Why
from fairlead.core.pool import Pool
from fairlead.core.prefill_decode import PrefillChoice, alone, cheapest_split, may_pay, prefillers
from fairlead.core.prefix_index import PrefixIndex
from fairlead.core.price_table import PriceTable
from fairlead.core.ranking import first_in_order, least_first
from fairlead.core.sessions import SessionTable
from fairlead.core.slo import meeting

_UNRANKED: Final = Ranking(())
SHOWN_CANDIDATES: Final = 8  # of a decision, in the log; a decision over 1,000 endpoints must not keep 1,000 costs


class Router(Placement):
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
        rules: Rules = NOTHING_IS_HOT,
    ) -> None:
        super().__init__(
            pool,
            index if index is not None else PrefixIndex(),
            sessions if sessions is not None else SessionTable(),
            rules,
        )
        self.fallbacks = fallbacks
        self.policy_failures = 0
        self.last_policy_failure = ""
        self._rng = rng
        self.decided = 0  # requests so far
        self.use(policy)

    def use(self, policy: Policy, tuner: Tuner | None = None) -> None:
        """Decide by `policy` from now on; `tuner` may change its weights, else the tuner that the policy names."""
        self.policy = policy
        self.tuner = tuner if tuner is not None else policy.tuner(self._rng)

    def admit(
        self,
        request: RequestFacts,
        subset: Collection[str] | None = None,
        now_s: float = 0.0,
        others: Sequence[Sequence[int]] = (),
    ) -> InFlight | Refusal:
        """Choose an endpoint for `request`, out of `subset` where the gateway gave one, and take its load.

        `others` are the prefix chains of other forms that the same prompt could take (context reuse). An endpoint's
        cost only falls with what it has cached, so ranking each with the form that it holds most of chooses the best
        pair of endpoint and form.
        """
        decision = self._decide(request, subset, now_s, others)
        if isinstance(decision, Refusal):
            return decision
        chosen = self.pool.by_address[decision.addresses[0]]
        chosen.last_chosen = decision.number
        uncached = request.tokens - decision.cached_tokens
        if decision.prefill is not None and decision.prefill.is_split:
            hop = Hop(self, request, decision.prefill, now_s)
            return InFlight(self, self.feedback, request, decision, Ticket(chosen, request.tokens, 0), hop)
        if decision.adapter is not None:  # whoever comes next waits for the load as for a prefill
            uncached += decision.adapter.load_tokens
        ticket = Ticket(chosen, request.tokens, uncached, request.adapter)
        try:
            chosen.prefills.expect(ticket, chosen.speed.prefill_ms_per_token * uncached, now_s)
        except BaseException:
            ticket.release()
            raise
        return InFlight(self, self.feedback, request, decision, ticket)

    def feedback(self, decision: Decision, outcome: Outcome, now_s: float) -> None:
        """`decision` has ended: pass its outcome to the tuner."""
        try:
            policy = self.tuner.observe(decision, outcome, self.decided, now_s)
        except Exception:  # as in `_rank`: counted, and the weights stay as they are
            self.last_policy_failure = traceback.format_exc(limit=-8)
            self.policy_failures += 1
            return
        if policy is not None:
            self.policy = policy

    def _decide(
        self, request: RequestFacts, subset: Collection[str] | None, now_s: float, others: Sequence[Sequence[int]]
    ) -> Decision | Refusal:
        if not self.pool.knows(request.model):
            return Refusal("unknown_model")
        table, endpoints = self._open_to(request, subset, now_s)
        if not endpoints:
            return Refusal("no_endpoint")
        own, held, forms = self._held(request, others, now_s)
        cached_tokens = _in_tokens(held, request) if held else {}
        credits = {} if others else self.credit(request, held, cached_tokens, now_s)
        needs = adapter_needs(request.adapter, endpoints) if request.adapter else NO_NEEDS
        if request.slo is not None and not request.unread:
            met = meeting(request.slo, endpoints, request, cached_tokens, needs)
            if not met.endpoints and request.slo.refuses:
                return Refusal("slo_unmet", met.late_ms)
            endpoints = met.endpoints or endpoints
        bound = self.affinity_target(request, now_s)
        target = bound if bound is None else self.planner.stayed_at(request, bound, endpoints, cached_tokens)
        if self.planner.draining:
            endpoints = self.planner.without_draining(endpoints, target)
        (ranked, why), best = self._rank(request, table, endpoints, cached_tokens, target, needs)
        first = ranked[0].candidate
        cached, migration = first.cached_tokens, None
        if first.is_affine:
            migration = self.planner.consider(
                request, self.pool.by_address[first.address], endpoints, cached_tokens, now_s
            )
            if isinstance(migration, Move) and migration.redirects:
                why, to = "migration", migration.target
                if len(ranked) < len(endpoints) and all(r.candidate.address != to for r in ranked):
                    ranked = [*ranked, self._unranked(to, request, cached_tokens, needs)]
                ranked = sorted(ranked, key=lambda r: r.candidate.address != to)
                best = tuple(sorted(best, key=lambda r: r.candidate.address != to))
                first = ranked[0].candidate
                cached = migration.tokens if migration.how == "pull" else first.cached_tokens
        prefill: PrefillChoice | None = None
        if self.pool.prefilling and request.may_split and migration is None:
            known = cached_tokens, held
            prefill, by_split = self._prefill(request, table, endpoints, first, known, subset, target, now_s)
            if prefill is not None and prefill.is_split:
                ranked, why = by_split
                first = ranked[0].candidate
                cached = min(cached_tokens.get(first.address, 0), request.tokens)
        addresses = [first.address]
        for r in ranked[1:]:
            if len(addresses) > self.fallbacks:
                break
            if r.candidate.model == first.model:  # the body names the model, so a fallback must serve it too
                addresses.append(r.candidate.address)
        self.decided += 1
        form_blocks = held.get(first.address, 0) - own.get(first.address, 0)
        return Decision(
            addresses=tuple(addresses),
            model=request.model if request.model in self.pool.names else first.model,
            why=why,
            cached_tokens=cached,
            queued_tokens=first.pending_prefill_tokens,
            rtt_ms=first.rtt_ms,
            considered=len(endpoints),
            best=best,
            policy=self.policy,
            decided_s=now_s,
            number=self.decided,
            form=forms.get(first.address, 0),
            form_tokens=int(form_blocks * request.block_tokens),
            migration=migration,
            cached_blocks=held.get(first.address, 0),
            credit=credits.get(first.address),
            prefill=prefill,
            adapter=first.adapter,
            strayed=target != bound and first.is_affine,
        )

    def _prefill(
        self,
        request: RequestFacts,
        table: PriceTable | None,
        endpoints: Sequence[Endpoint],
        first: Candidate,
        known: tuple[Mapping[str, int], Mapping[str, int]],
        subset: Collection[str] | None,
        target: str | None,
        now_s: float,
    ) -> tuple[PrefillChoice | None, Ranking]:
        """Both ways for a request that goes to `first` if it is alone; and who decodes it otherwise, best first.

        Who decodes is ranked by the policy as if each had the whole prompt: so it finds it when it begins. `known` are
        the tokens and the blocks of the prompt that are cached, by address.
        """
        cached_tokens, held = known
        among = self.pool.prefilling.get(first.model, ())
        if not among or not may_pay(first):
            return None, _UNRANKED
        name = request.model if request.model in self.pool.names else first.model
        able = prefillers(among, name, subset, self.planner.draining)
        for endpoint in able:
            endpoint.prefills.settle(now_s)
        self.forget_restarted(able)
        alike = [e for e in endpoints if e.model == first.model]
        whole = dict.fromkeys([e.address for e in alike], request.tokens)
        ranking, _ = self._rank(request, table, alike, whole, target, NO_NEEDS)
        at = ranking.order[0].candidate
        decoder = self.pool.by_address[at.address]
        ms_per_token = self.transfers.ms_per_token(decoder)
        split = cheapest_split(at, decoder, able, request.tokens, cached_tokens, ms_per_token)
        if split is None:
            return None, _UNRANKED
        cached = min(cached_tokens.get(split.prefiller, 0), request.tokens)
        return PrefillChoice(alone(first), split, cached, held.get(split.prefiller, 0)), ranking

    def _held(
        self, request: RequestFacts, others: Sequence[Sequence[int]], now_s: float
    ) -> tuple[Mapping[str, int], Mapping[str, int], Mapping[str, int]]:
        """By address: blocks cached of the request's own form, of its best form, and which form that is, if another."""
        own = self.index.match(request.prefix, now_s) if request.prefix else {}
        if not others:
            return own, own, {}
        held = dict(own)
        forms: dict[str, int] = {}
        for form, chain in enumerate(others, 1):
            for address, blocks in self.index.match(chain, now_s).items():
                if blocks > held.get(address, 0):
                    held[address] = blocks
                    forms[address] = form
        return own, held, forms

    def _open_to(
        self, request: RequestFacts, subset: Collection[str] | None, now_s: float
    ) -> tuple[PriceTable | None, Sequence[Endpoint]]:
        """The endpoints that the request may go to now, and the table that holds them, if any."""
        table = self.pool.table(request.model)
        if table is not None:
            self.forget_restarted(table.refresh(now_s))
            endpoints = table.endpoints
            if subset is not None:
                endpoints = [e for e in endpoints if e.address in subset]
            if endpoints:
                return table, endpoints if request.tokens <= table.shortest_length else fitting(endpoints, request)
        endpoints = self.pool.available(request.model)
        for endpoint in endpoints:  # of a subset or not, as a table settles all of them
            if endpoint.prefills.due_s < inf:
                endpoint.prefills.settle(now_s)
        if subset is not None:
            endpoints = self.pool.available(request.model, subset)
        self.forget_restarted(endpoints)
        return None, fitting(endpoints, request)

    def _rank(
        self,
        request: RequestFacts,
        table: PriceTable | None,
        endpoints: Sequence[Endpoint],
        cached_tokens: Mapping[str, int],
        target: str | None,
        needs: Mapping[str, AdapterNeed],
    ) -> tuple[Ranking, tuple[Ranked, ...]]:
        """A body that is not read gives a policy nothing to go by: such a request goes where the load is least."""
        policy = self.policy
        if not request.unread and table is not None and getattr(policy, "priced", False):
            try:
                return self._shortlist(cast("Priced", policy), request, table, endpoints, cached_tokens, target, needs)
            except Exception:  # as below
                self.last_policy_failure = traceback.format_exc(limit=-8)
                self.policy_failures += 1
        options = candidates(endpoints, request, cached_tokens, target, None, needs)
        if request.unread:
            return Ranking(least_first(options, _untried_and_idle), "fallback"), ()
        try:
            ranking = policy.rank(request, options, self._rng)
            if len(ranking.order) == len(options):
                return ranking, tuple(ranking.order[:SHOWN_CANDIDATES])
            self.last_policy_failure = (
                f"{type(policy).__name__} ranked {len(ranking.order)} of {len(options)} candidates"
            )
        except Exception:  # a bug in a policy must not fail the request: serve it, keep the cause for the log
            self.last_policy_failure = traceback.format_exc(limit=-8)
        self.policy_failures += 1
        return Ranking(least_first(options, _untried_and_idle), "fallback"), ()

    def _shortlist(
        self,
        policy: Priced,
        request: RequestFacts,
        table: PriceTable,
        endpoints: Sequence[Endpoint],
        cached_tokens: Mapping[str, int],
        target: str | None,
        needs: Mapping[str, AdapterNeed],
    ) -> tuple[Ranking, tuple[Ranked, ...]]:
        """The ranking down to what is shown, and to the fallbacks of the model that comes first."""
        costs_ms, spreads, least = table.scores(policy, request, endpoints, cached_tokens, needs)
        width, fallbacks = policy.tie_ms, self.fallbacks + 2  # a move may put one more first
        order = first_in_order(costs_ms, endpoints, max(SHOWN_CANDIDATES, fallbacks), tie_width=width, spreads=spreads)
        model = endpoints[order[0]].model
        if any(endpoints[i].model != model for i in order):
            same, least_ms = [i for i, e in enumerate(endpoints) if e.model == model], min(costs_ms)
            theirs, those = [costs_ms[i] for i in same], [endpoints[i] for i in same]
            spread = None if spreads is None else [spreads[i] for i in same]
            first = first_in_order(theirs, those, fallbacks, tie_width=width, spreads=spread, least=least_ms)
            order += [same[i] for i in first if same[i] not in order]
        options = candidates([endpoints[i] for i in order], request, cached_tokens, target, least, needs)
        ranked = [Ranked(option, costs_ms[i]) for option, i in zip(options, order, strict=True)]
        why: Why = "affinity" if options[0].is_affine else "cost"
        return Ranking(ranked, why), tuple(ranked[:SHOWN_CANDIDATES])

    def _unranked(
        self,
        address: str,
        request: RequestFacts,
        cached_tokens: Mapping[str, int],
        needs: Mapping[str, AdapterNeed],
    ) -> Ranked:
        """An endpoint that a move chose, though it is not on the shortlist."""
        (candidate,) = candidates([self.pool.by_address[address]], request, cached_tokens, needs=needs)
        return Ranked(candidate, inf)


def _in_tokens(held: Mapping[str, int], request: RequestFacts) -> dict[str, int]:
    """Most endpoints hold as many blocks as each other: those of a shared system prompt."""
    tokens_of = {blocks: request.tokens_in(blocks) for blocks in set(held.values())}
    return {address: tokens_of[blocks] for address, blocks in held.items()}


def _untried_and_idle(candidate: Candidate) -> float:
    return candidate.attempts * 1e6 + candidate.inflight_requests
