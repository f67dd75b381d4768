"""The halves of a request, prefill and decoding: who does each, where endpoints have roles.

A policy that ranks by cost leaves the choice among the first of its ranking to the costs of both ways, which know more:
what others lose, and how much of its time an engine lately computed prompts. So engines of role `both` divide the work
among them: those that compute prompts are not chosen to decode, and those that decode compute few. Of any other policy
the first is taken, as its place may be for a session's sake.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from fairlead.core.advice import Advice, Options
from fairlead.core.candidates import NO_NEEDS, Candidate
from fairlead.core.division import Division
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.placement import Placement
from fairlead.core.policy import Ranked, Ranking, is_priced
from fairlead.core.prefill_decode import (
    Hops,
    PrefillChoice,
    alone,
    cheapest_split,
    may_pass_on,
    may_pay,
    offers,
    prefillers,
)

_COMPARED: Final = 4  # endpoints whose ways are compared


class Halves(Placement, Advice):
    """Chooses both endpoints of a request; nothing here takes load."""

    def answering(
        self, request: RequestFacts, endpoints: Sequence[Endpoint], subset: Collection[str] | None
    ) -> Sequence[Endpoint]:
        """Those of `endpoints` that can answer it, alone or with one that computes its prompt."""
        models = {e.model for e in endpoints} if request.may_split else ()
        able = {model: self._prefillers(request, model, subset) for model in models}
        return [e for e in endpoints if e.spec.answers_alone or any(may_pass_on(p, e) for p in able.get(e.model, ()))]

    def _prefillers(self, request: RequestFacts, model: str, subset: Collection[str] | None) -> list[Endpoint]:
        """Who may compute its prompt for an endpoint of `model` now."""
        name = request.model if request.model in self.pool.names else model
        return prefillers(self.pool.prefilling.get(model, ()), name, subset, self.planner.draining)

    def prefill(
        self,
        options: Options,
        ranking: Ranking,
        blocks: Mapping[str, int],
        subset: Collection[str] | None,
        now_s: float,
    ) -> tuple[PrefillChoice | None, Ranking]:
        """Both ways for a request, and who answers it by the cheaper one, best first.

        `blocks` are cached, by address. Who decodes what another computes is ranked by the policy as if each had the
        whole prompt: so it finds it when it begins.
        """
        request, cached_tokens, first = options.request, options.cached_tokens, ranking.order[0].candidate
        must = not self.pool.by_address[first.address].spec.answers_alone
        if first.model not in self.pool.prefilling or not (must or may_pay(first)):
            return None, ranking
        able = self._prefillers(request, first.model, subset)
        for endpoint in able:
            if endpoint.prefills.due_s <= now_s:
                endpoint.prefills.settle(now_s)
        self.forget_restarted(able)
        alike = [e for e in options.endpoints if e.model == first.model and not (must and e.spec.answers_alone)]
        whole = dict.fromkeys([e.address for e in alike], request.tokens)
        decoding = options._replace(endpoints=alike, cached_tokens=whole, needs=NO_NEEDS, cached_blocks=None)
        decoders, _ = self.rank(decoding)
        division = self.pool.divisions.get(first.model)
        if division is not None:
            division.look(now_s)
        compared = self._decoding(decoding, decoders, division)
        split = self._cheapest_split(compared, able, request, cached_tokens, now_s)
        if split is None:
            return None, ranking
        ones = [first] if must else self._alone(ranking)
        single = min([self._by_itself(each, division, now_s) for each in ones], key=Hops.total_ms)
        cached = min(cached_tokens.get(split.prefiller, 0), request.tokens)
        choice = PrefillChoice(single, split, cached, blocks.get(split.prefiller, 0), must_split=must)
        if not choice.is_split:
            return choice, _led_by(single.decoder, ranking)
        decoders = _led_by(split.decoder, decoders, compared)
        paired = not self.pool.by_address[split.decoder].spec.answers_alone
        able_alone = [e for e in options.endpoints if paired and e.model == first.model and e.spec.answers_alone]
        if able_alone:
            others, _ = self.rank(options._replace(endpoints=able_alone, needs=NO_NEEDS, cached_blocks=None))
            decoders = Ranking([decoders.order[0], *others.order], decoders.why)
            choice = msgspec.structs.replace(choice, else_alone=True)
        return choice, decoders

    def _decoding(self, options: Options, decoders: Ranking, division: Division | None) -> Sequence[Ranked]:
        """Whose ways are compared, of `decoders`, who are `options`. A policy does not know which engines decode
        undisturbed by prompts: where engines divide the work these have the most requests, so it ranks them last.
        """
        among = self._among(decoders)
        if division is None or not is_priced(self.policy):
            return among
        known = {ranked.candidate.address for ranked in among}
        others = [e for e in division.quickest if e.address not in known and e in options.endpoints]
        if not others:
            return among
        return [*among, *self.rank(options._replace(table=None, endpoints=others))[0].order]

    def _cheapest_split(
        self,
        decoders: Sequence[Ranked],
        able: Sequence[Endpoint],
        request: RequestFacts,
        cached_tokens: Mapping[str, int],
        now_s: float,
    ) -> Hops | None:
        best: Hops | None = None
        among = offers(able, request.tokens, cached_tokens)
        for ranked in decoders:
            at = ranked.candidate
            decoder = self.pool.by_address[at.address]
            lacking = request.tokens - min(cached_tokens.get(at.address, 0), request.tokens)
            split = cheapest_split(at, decoder, among, lacking, self.transfers.ms_per_token(decoder), now_s)
            if split is not None and (best is None or split.total_ms() < best.total_ms()):
                best = split
        return best

    def _by_itself(self, at: Candidate, division: Division | None, now_s: float) -> Hops:
        endpoint = self.pool.by_address[at.address]
        return alone(at, endpoint, now_s, division, self.transfers.ms_per_token(endpoint))

    def _alone(self, ranking: Ranking) -> list[Candidate]:
        """Who may do both halves: of the model of the first, which may."""
        model, by_address = ranking.order[0].candidate.model, self.pool.by_address
        among = [ranked.candidate for ranked in self._among(ranking)]
        return [each for each in among if each.model == model and by_address[each.address].spec.answers_alone]

    def _among(self, ranking: Ranking) -> Sequence[Ranked]:
        """Those whose ways are compared: only the first, where its place is not for its cost."""
        return ranking.order[: _COMPARED if is_priced(self.policy) else 1]


def _led_by(address: str, ranking: Ranking, others: Sequence[Ranked] = ()) -> Ranking:
    """Only what a policy by cost ranked has another first one, which may be of `others`."""
    if ranking.order[0].candidate.address == address:
        return ranking
    order = ranking.order
    if all(ranked.candidate.address != address for ranked in order):
        order = [*order, *[ranked for ranked in others if ranked.candidate.address == address]]
    order = sorted(order, key=lambda ranked: ranked.candidate.address != address)
    return Ranking(order, "affinity" if order[0].candidate.is_affine else "cost")
