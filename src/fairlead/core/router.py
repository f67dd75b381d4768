"""The router: facts in, a decision out, and the load of the chosen endpoint taken in the same step.

`admit` never raises for anything that a request says, and a policy that raises costs the request only the
policy's advice. The caller passes the clock; the server and the simulator call the same code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf
from random import Random
from typing import Final, NamedTuple

import msgspec

from fairlead.core.adapter_slots import adapter_needs
from fairlead.core.advice import Advice, Options
from fairlead.core.candidates import NO_NEEDS, candidates, fitting
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.halves import Halves
from fairlead.core.hop import Hop
from fairlead.core.in_flight import InFlight
from fairlead.core.ledger import Ticket
from fairlead.core.migration import NOTHING_IS_HOT, Rules
from fairlead.core.moves import Move, Stay
from fairlead.core.placement import Placement
from fairlead.core.policy import Credit, Decision, Policy, Ranked, Ranking, Refusal
from fairlead.core.pool import Pool
from fairlead.core.prefill_decode import PrefillChoice
from fairlead.core.prefix_index import PrefixIndex
from fairlead.core.price_table import PriceTable
from fairlead.core.sessions import SessionTable
from fairlead.core.slo import meeting

_NO_FORMS: Final[Mapping[str, int]] = {}


class _Known(NamedTuple):
    """What endpoints have cached of a prompt, by address. A form is an order of its context that reuse may choose."""

    own_blocks: Mapping[str, int]  # of the prompt as it came
    blocks: Mapping[str, int]  # of its best form
    forms: Mapping[str, int]  # which that is, where it is another
    tokens: Mapping[str, int]
    credits: Mapping[str, Credit]


class _Way(NamedTuple):
    """The way that a request takes, before it is reported as a decision."""

    ranking: Ranking
    best: tuple[Ranked, ...]
    cached_tokens: int  # at the endpoint that answers
    migration: Move | Stay | None = None
    prefill: PrefillChoice | None = None


class Router(Halves):
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
        Placement.__init__(
            self,
            pool,
            index if index is not None else PrefixIndex(),
            sessions if sessions is not None else SessionTable(),
            rules,
        )
        Advice.__init__(self, policy, fallbacks, rng)

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
        if (models := self.pool.mixed.get(request.model or "")) is not None:
            request = self._for_one_of(models, request, subset, now_s)
        treatment = self.treatment(request, now_s) if self.suspects.are_any else None
        if treatment == "refused":
            self.suspects.refused += 1
            return Refusal("kills_engines")
        decision = self._decide(request, subset, now_s, others)
        if isinstance(decision, Refusal):
            return decision
        if treatment == "alone":
            decision = self._on_trial(request, decision)
        chosen = self.pool.by_address[decision.addresses[0]]
        chosen.last_chosen = decision.number
        if decision.prefill is not None and decision.prefill.is_split:
            hop = Hop(self, request, decision.prefill, now_s)
            ticket = Ticket(chosen, request.tokens, 0, awaits_other=True)
            return InFlight(self, self.feedback, request, decision, ticket, hop)
        uncached, speed = request.tokens - decision.cached_tokens, chosen._speed
        prefill_ms = speed.prefill_ms(request.tokens, decision.cached_tokens)
        if decision.adapter is not None:  # whoever comes next waits for the load as for a prefill
            uncached += decision.adapter.load_tokens
            prefill_ms += decision.adapter.load_tokens * speed.prefill_ms_per_token
        ticket = Ticket(chosen, request.tokens, uncached, request.adapter)
        try:
            chosen.prefills.expect(ticket, prefill_ms, now_s)
        except BaseException:
            ticket.release()
            raise
        return InFlight(self, self.feedback, request, decision, ticket)

    def _on_trial(self, request: RequestFacts, decision: Decision) -> Decision:
        """The first endpoint alone, for a prompt that may kill each at which it is tried."""
        suspects, address = self.suspects, decision.addresses[0]
        suspects.alone += 1
        suspects.tried((request.model, request.cause), address, decision.decided_s)
        return msgspec.structs.replace(decision, addresses=(address,))

    def _for_one_of(
        self, models: Sequence[str], request: RequestFacts, subset: Collection[str] | None, now_s: float
    ) -> RequestFacts:
        """`request` for that one of a route's models and adapters whose best endpoint costs least.

        One engine may serve several of them, with other cached prefixes and another capability for each.
        """
        chosen, least, draining = request, (True, True, True, True, inf), self.planner.draining
        for model in models:
            asked = self.pool.called(msgspec.structs.replace(request, model=model), model)
            table, endpoints = self._open_to(asked, subset, now_s)
            if self.pool.has_halves:
                endpoints = self.answering(asked, endpoints, subset)
            if not endpoints:
                continue
            held = self.index.match(asked.prefix, now_s) if asked.prefix else {}
            needs = adapter_needs(asked.adapter, endpoints) if asked.adapter else NO_NEEDS
            target, cached_tokens, is_late = self.affinity_target(asked, now_s), _in_tokens(held, asked), False
            if draining:
                endpoints = self.planner.without_draining(endpoints, target)
            if asked.slo is not None and not asked.unread:
                met = meeting(asked.slo, endpoints, asked, cached_tokens, needs).endpoints
                endpoints, is_late = met or endpoints, not met
            to_come = self._to_come(asked, now_s)
            ranking, _ = self.rank(Options(asked, table, endpoints, cached_tokens, target, needs, to_come, held))
            first, length = ranking.order[0], endpoints[0].max_model_len
            # As among a route's own models: a last resort, one that the prompt does not fit, one that drains, or one
            # that misses the objective, only if all are.
            is_too_long = length is not None and request.tokens > length
            drains = first.candidate.address in draining and first.candidate.address != target
            cost = not endpoints[0].health.healthy, is_too_long, drains, is_late, first.score
            if cost < least:
                chosen, least = asked, cost
        return chosen

    def _to_come(self, request: RequestFacts, now_s: float) -> float:
        """How many later requests its prefill delays, as far as that counts: who asks again needs another model, whose
        cache it seldom is in. In a busy pool the one that was wrong would be the cheapest in spite of its penalty.
        """
        return 0.0 if request.attempted else self.pool.to_come(request.model, now_s)

    def _decide(
        self, request: RequestFacts, subset: Collection[str] | None, now_s: float, others: Sequence[Sequence[int]]
    ) -> Decision | Refusal:
        if not self.pool.knows(request.model):
            return Refusal("unknown_model")
        table, endpoints = self._open_to(request, subset, now_s)
        if not endpoints:
            return Refusal("no_endpoint")
        if self.pool.has_halves:
            endpoints = self.answering(request, endpoints, subset)
            if not endpoints:
                others_could = request.may_split or request.unread
                waits = others_could or any(e.spec.answers_alone for e in self.pool.serving(request.model))
                return Refusal("no_endpoint" if waits else "one_server")
        known = self._known(request, others, now_s)
        needs = adapter_needs(request.adapter, endpoints) if request.adapter else NO_NEEDS
        bound = self.affinity_target(request, now_s)
        if self.planner.draining:  # before its objective counts, as idle endpoints meet that best
            endpoints = self.planner.without_draining(endpoints, bound)
        if request.slo is not None and not request.unread:
            met = meeting(request.slo, endpoints, request, known.tokens, needs)
            if not met.endpoints and request.slo.refuses:
                return Refusal("slo_unmet", met.late_ms)
            endpoints = met.endpoints or endpoints
        target = bound if bound is None else self.planner.stayed_at(request, bound, endpoints, known.tokens)
        if self.planner.draining and target != bound:
            endpoints = self.planner.without_draining(endpoints, target)
        to_come = self._to_come(request, now_s)
        options = Options(request, table, endpoints, known.tokens, target, needs, to_come, known.blocks)
        way = self._way(options, known, subset, now_s)
        first = way.ranking.order[0].candidate
        self.decided += 1
        self.others.decided(way.cached_tokens, request.tokens)
        form_blocks = known.blocks.get(first.address, 0) - known.own_blocks.get(first.address, 0)
        return Decision(
            addresses=self._in_order_of_trial(way.ranking),
            model=request.model if request.model in self.pool.names else first.model,
            why=way.ranking.why,
            cached_tokens=way.cached_tokens,
            queued_tokens=first.pending_prefill_tokens,
            queued_attended_tokens=self.pool.by_address[first.address]._load.pending_attended_tokens,
            rtt_ms=first.rtt_ms,
            considered=len(endpoints),
            best=way.best,
            policy=self.policy,
            decided_s=now_s,
            number=self.decided,
            form=known.forms.get(first.address, 0),
            form_tokens=int(form_blocks * request.block_tokens),
            migration=way.migration,
            cached_blocks=known.blocks.get(first.address, 0),
            credit=known.credits.get(first.address),
            prefill=way.prefill,
            adapter=first.adapter,
            strayed=target != bound and first.is_affine,
        )

    def _way(self, options: Options, known: _Known, subset: Collection[str] | None, now_s: float) -> _Way:
        """What the policy chooses, or where a session moves instead, or who computes the prompt before."""
        request = options.request
        ranking, best = self.rank(options)
        first = ranking.order[0].candidate
        migration: Move | Stay | None = None
        if first.is_affine and self.pool.by_address[first.address].spec.answers_alone:
            source = self.pool.by_address[first.address]
            migration = self.planner.consider(request, source, options.endpoints, known.tokens, now_s)
            if isinstance(migration, Move) and migration.redirects:
                ranking, best = self._redirected(options, ranking, best, migration.target)
                moved = ranking.order[0].candidate
                cached_tokens = migration.tokens if migration.how == "pull" else moved.cached_tokens
                return _Way(ranking, best, cached_tokens, migration)
        if self.pool.prefilling and request.may_split and migration is None:
            prefill, ranking = self.prefill(options, ranking, known.blocks, subset, now_s)
            at = ranking.order[0].candidate.address
            best = tuple(sorted(best, key=lambda ranked: ranked.candidate.address != at))
            if best and best[0].candidate.address != at:  # who decodes was not among the first of the policy
                best = (ranking.order[0], *best[:-1])
            return _Way(ranking, best, min(known.tokens.get(at, 0), request.tokens), None, prefill)
        return _Way(ranking, best, first.cached_tokens, migration)

    def _in_order_of_trial(self, ranking: Ranking) -> tuple[str, ...]:
        """The address chosen, and its fallbacks: of its model, as the body names it.

        What goes to an endpoint that answers alone says nothing to one that does not.
        """
        first, by_address = ranking.order[0].candidate, self.pool.by_address
        must_answer_alone = self.pool.has_halves and by_address[first.address].spec.answers_alone
        addresses = [first.address]
        for ranked in ranking.order[1:]:
            if len(addresses) > self.fallbacks:
                break
            candidate = ranked.candidate
            if candidate.model != first.model:
                continue
            if not must_answer_alone or by_address[candidate.address].spec.answers_alone:
                addresses.append(candidate.address)
        return tuple(addresses)

    def _redirected(
        self, options: Options, ranking: Ranking, best: tuple[Ranked, ...], target: str
    ) -> tuple[Ranking, tuple[Ranked, ...]]:
        """A move sends the request to `target`, which may not be on the shortlist."""
        order = ranking.order
        if len(order) < len(options.endpoints) and all(r.candidate.address != target for r in order):
            to, delayed = [self.pool.by_address[target]], options.delayed_requests
            (moved,) = candidates(to, options.request, options.cached_tokens, None, delayed, options.needs)
            order = [*order, Ranked(moved, inf)]
        order = sorted(order, key=lambda r: r.candidate.address != target)
        return Ranking(order, "migration"), tuple(sorted(best, key=lambda r: r.candidate.address != target))

    def _known(self, request: RequestFacts, others: Sequence[Sequence[int]], now_s: float) -> _Known:
        """What the endpoints have cached of the request's own form, and of its best form."""
        own = self.index.match(request.prefix, now_s) if request.prefix else {}
        if not others:
            tokens = _in_tokens(own, request) if own else {}
            return _Known(own, own, _NO_FORMS, tokens, self.credit(request, own, tokens, now_s))
        blocks = dict(own)
        forms: dict[str, int] = {}
        for form, chain in enumerate(others, 1):
            for address, held in self.index.match(chain, now_s).items():
                if held > blocks.get(address, 0):
                    blocks[address] = held
                    forms[address] = form
        return _Known(own, blocks, forms, _in_tokens(blocks, request) if blocks else {}, {})

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


def _in_tokens(held: Mapping[str, int], request: RequestFacts) -> dict[str, int]:
    """Most endpoints hold as many blocks as each other: those of a shared system prompt."""
    tokens_of = {blocks: request.tokens_in(blocks) for blocks in set(held.values())}
    return {address: tokens_of[blocks] for address, blocks in held.items()}
