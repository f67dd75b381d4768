"""What stays the same from one request to the next, kept for all healthy endpoints that serve one name.

A decision over 1,000 endpoints must not examine each one anew. Kept are who is healthy and, where the policy has
`Prices`, these in columns: the costs of all endpoints are then one list comprehension. Nobody reports
changes here: a decision compares revisions of endpoints, their health and when their prefills are due, as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import compress, repeat
from math import inf
from typing import Final, NamedTuple

from fairlead.core.adapter_slots import AdapterNeed
from fairlead.core.candidates import Standing
from fairlead.core.capability import Capability
from fairlead.core.cost import adapter_ms, contended_ms, cost_factor, costs_ms
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Priced
from fairlead.core.prefill_work import work_tokens
from fairlead.core.prefills import PrefillEstimate


class Scores(NamedTuple):
    """The cost of each endpoint in ms, bit for bit as the policy's `rank` computes it."""

    costs_ms: Sequence[float]
    spreads_ms: Sequence[float] | None  # by which they may be too high; None: by nothing
    delayed_requests: float


_COLUMNS: Final = 9  # as `_row` makes them
_ANSWERS: Final = 4  # the column of how long answers are
_FEW_SHARE: Final = 4  # with less than a quarter of endpoints that hold any of a prompt, looking these up is faster
_CHUNK: Final = 64


class PriceTable:
    """`refresh` comes first in each decision; `endpoints` and `scores` are as of then."""

    __slots__ = (
        "_answers",
        "_columns",
        "_health",
        "_healthy",
        "_kinds",
        "_lengths",
        "_name",
        "_policy",
        "_positions",
        "_prefills",
        "_revisions",
        "_serving",
        "_unpriced",
        "endpoints",
        "shortest_length",
    )

    def __init__(self, serving: Sequence[Endpoint], name: str | None = None) -> None:
        """`name` is what requests call what they serve, where that is an adapter or a second name of their model."""
        self._name = name
        self.endpoints: Sequence[Endpoint] = ()  # those that are healthy, in the order of the pool
        self.shortest_length = inf  # of context, of any of them
        self._serving = serving
        self._health = [e.health for e in serving]  # an endpoint's health and prefills are the same as long as it is
        self._prefills: list[PrefillEstimate] = []  # of `endpoints`
        self._healthy: list[bool] = []
        self._revisions: list[int] = []
        self._positions: dict[str, int] = {}  # in `endpoints`, by address
        self._policy: Priced | None = None
        self._unpriced: set[int] = set()  # positions whose prices are not those of now
        self._lengths: list[float] = []  # of context
        self._answers: tuple[float, float] | None = None  # the least and the most tokens expected of any endpoint
        self._columns: tuple[list[float], ...] = ()  # a row for each endpoint
        self._kinds: list[tuple[str, Capability]] = []  # models with their capabilities: few, and endpoints share them

    def refresh(self, now_s: float) -> Sequence[Endpoint]:
        """Take in what changed, and count prefills that are due as done. The endpoints that changed since last time."""
        healthy = [health.healthy for health in self._health]
        if healthy != self._healthy:
            self._start_over(healthy)
        endpoints = self.endpoints
        for prefills in [prefills for prefills in self._prefills if prefills.due_s <= now_s]:
            prefills.settle(now_s)
        revisions = [e.revision for e in endpoints]
        if revisions == self._revisions:
            return ()
        changed = _differences(self._revisions, revisions)
        for position in changed:
            endpoint = endpoints[position]
            endpoint.prefills.settle(now_s)
            revisions[position] = endpoint.revision
            length = endpoint.max_model_len
            self._lengths[position] = inf if length is None else length
        self._revisions = revisions
        self.shortest_length = min(self._lengths)
        self._unpriced.update(changed)
        return [endpoints[position] for position in changed]

    def scores(
        self,
        policy: Priced,
        request: RequestFacts,
        among: Sequence[Endpoint],
        cached_tokens: Mapping[str, int],
        needs: Mapping[str, AdapterNeed],
        to_come: float,
    ) -> Scores:
        """Of `among`, which is `endpoints` or a part of them; `cached_tokens` and `needs` are by address.

        `to_come` are the later requests that its prefill delays.
        """
        self._price(policy)
        columns: Sequence[Sequence[float]] = self._columns
        if len(among) != len(self.endpoints):
            positions = [self._positions[e.address] for e in among]
            columns = [[column[i] for i in positions] for column in columns]
        once, prefill, contention, decode, answers, inflight, kinds, spreads, growths = columns
        delayed = min(inflight) + to_come
        limit = request.max_output_tokens
        of_prompt = request.language, request.bucket, request.tokens, request.task
        rights = [capability.success_probability(*of_prompt) for _, capability in self._kinds]
        factors = [
            cost_factor(right, policy.retry_penalty, request.attempted.count(model))
            for right, (model, _) in zip(rights, self._kinds, strict=True)
        ]
        contended = contended_ms(prefill, contention, delayed)
        if needs:
            # As `rank` adds it up: the load of an adapter to what a request costs whatever its length.
            contended, of, weight = list(contended), needs.get, policy.adapter_weight
            once = [
                ms if (need := of(e.address)) is None else ms + weight * adapter_ms(need, each)
                for ms, each, e in zip(once, contended, among, strict=True)
            ]
        costs = costs_ms(
            once,
            contended,
            decode,
            self._work(request.tokens, among, cached_tokens, growths),
            answers if limit is None or self._answers is None else _at_most(limit, answers, self._answers),
            repeat(factors[0]) if len(factors) == 1 else [factors[kind] for kind in kinds],  # type: ignore[call-overload]
        )
        spread = None
        if any(spreads):
            spread = [ms / rights[int(kind)] for ms, kind in zip(spreads, kinds, strict=True)]
        return Scores(costs, spread, delayed)

    def _start_over(self, healthy: list[bool]) -> None:
        self._healthy = healthy
        self.endpoints = tuple(compress(self._serving, healthy))
        self._prefills = [e.prefills for e in self.endpoints]
        self._positions = {e.address: position for position, e in enumerate(self.endpoints)}
        self._revisions = [-1] * len(self.endpoints)
        self._lengths = [inf] * len(self.endpoints)
        self._policy = None

    def _price(self, policy: Priced) -> None:
        """Rows of those that changed; of all, where the policy is another one."""
        if policy is not self._policy:
            self._policy = None  # until every row is made
            self._kinds, self._answers = [], None
            self._columns = tuple([0.0] * len(self.endpoints) for _ in range(_COLUMNS))
            self._unpriced = set(range(len(self.endpoints)))
        for position in self._unpriced:
            row = self._row(policy, self.endpoints[position])
            if self._columns[_ANSWERS][position] != row[_ANSWERS]:
                self._answers = None
            for column, value in zip(self._columns, row, strict=True):
                column[position] = value
        self._unpriced.clear()
        if self._answers is None:
            self._answers = min(self._columns[_ANSWERS]), max(self._columns[_ANSWERS])
        self._policy = policy

    def _row(self, policy: Priced, endpoint: Endpoint) -> tuple[float, ...]:
        """Ms once, of prefill, contention, decoding; tokens of an answer, requests in flight, kind, spread, growth."""
        load, others, speed, spec = endpoint.load, endpoint.strangers, endpoint.speed, endpoint.spec
        growth = speed.prefill_growth
        network_ms, fixed_ms, queue_ms, prefill_ms, contention_ms, decode_ms, spread_ms = policy.prices(
            Standing(
                endpoint.rtt_ms,
                load.inflight_requests,
                load.pending_prefill_tokens,
                growth * load.pending_attended_tokens,
                speed.prefill_ms_per_token,
                speed.decode_ms_per_token,
                speed.batch_slowdown,
                endpoint.rtt_spread_ms,
                load.decoding_requests,
                speed.answer_tokens,
                speed.fixed_ms,
                others.pending_work_tokens(growth),
                load.awaited_requests,
            )
        )
        kind = self._kind(self._name or spec.model, spec.capability_of(self._name or ""))
        answer_tokens, inflight = speed.answer_tokens, load.inflight_requests + others.inflight_requests
        once_ms = network_ms + fixed_ms + queue_ms
        return once_ms, prefill_ms, contention_ms, decode_ms, answer_tokens, inflight, kind, spread_ms, growth

    def _kind(self, model: str, capability: Capability) -> int:
        for kind, (kinds_model, kinds_capability) in enumerate(self._kinds):
            if kinds_capability is capability and kinds_model == model:
                return kind
        self._kinds.append((model, capability))
        return len(self._kinds) - 1

    def _work(
        self, tokens: int, among: Sequence[Endpoint], cached_tokens: Mapping[str, int], growths: Sequence[float]
    ) -> Iterable[float]:
        """As `Candidate.work_tokens`. Most often one number does: engines of one model have one growth."""
        if not any(growths):
            return self._uncached(tokens, among, cached_tokens)
        if not cached_tokens:
            work = {growth: work_tokens(tokens, 0, growth) for growth in set(growths)}
            return repeat(work[growths[0]]) if len(work) == 1 else [work[growth] for growth in growths]
        held = cached_tokens.get
        cached = [min(held(e.address, 0), tokens) for e in among]
        return [work_tokens(tokens - n, n, growth) for n, growth in zip(cached, growths, strict=True)]

    def _uncached(self, tokens: int, among: Sequence[Endpoint], cached_tokens: Mapping[str, int]) -> Iterable[int]:
        if not cached_tokens:
            return repeat(tokens)
        if len(among) == len(self.endpoints) and len(cached_tokens) < len(among) // _FEW_SHARE:
            uncached, position_of = [tokens] * len(among), self._positions.get
            for address, cached in cached_tokens.items():
                position = position_of(address)
                if position is not None:
                    uncached[position] = max(0, tokens - cached)
            return uncached
        held = cached_tokens.get
        uncached = [tokens - held(e.address, 0) for e in among]
        return uncached if max(cached_tokens.values()) <= tokens else [max(0, n) for n in uncached]


def _differences(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Positions at which two lists of one length differ: most often few, and slices are compared fast."""
    return [
        position
        for start in range(0, len(after), _CHUNK)
        if before[start : start + _CHUNK] != after[start : start + _CHUNK]
        for position in range(start, min(start + _CHUNK, len(after)))
        if before[position] != after[position]
    ]


def _at_most(limit: int, answers: Collection[float], bounds: tuple[float, float]) -> Iterable[float]:
    """As `Candidate.output_tokens`. Answers of one model are as long as each other, so most often one number does."""
    shortest, longest = bounds
    if limit <= shortest:
        return repeat(limit)
    return answers if longest < limit else [n if n < limit else limit for n in answers]
