"""Admission: a request begins now, waits for its turn, or is told to come back.

Below saturation `passes` is all that a request meets: nothing waits, and the first endpoint looked at has room. At
saturation requests wait in one queue until `release` finds an endpoint with room for the next one; it is chosen then,
and its load is taken in the same step, so no burst can pass between two reports of an engine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from math import ceil, inf
from typing import Final

import msgspec

from fairlead.admission.answer_lengths import AnswerLengths
from fairlead.admission.eviction import PATIENCE_S, Evictions
from fairlead.admission.gate import Gate, answer_tokens, engine_ms, is_refused_at_once
from fairlead.admission.limits import BandRules, QueueRules
from fairlead.admission.queue import WaitQueue
from fairlead.admission.recent_levels import RecentLevels
from fairlead.admission.waiting import Lane, Verdict, Waiting
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.histogram import DURATION_SECONDS, Histogram
from fairlead.core.in_flight import InFlight
from fairlead.core.policy import Refusal
from fairlead.core.pool import ANY_MODEL, Pool
from fairlead.core.router import Router
from fairlead.core.slo import least_first_token_ms

AT_ONCE: Final = 64  # requests released in one step, and as many refused whose time is over
_MOST_LANES: Final = 64  # of one group, with something waiting: subsets beyond them wait as if they had none
_FOR_PACE: Final = 0.5  # of its longest wait; the rest is for an endpoint with room
_LEAST_RETRY_S, _MOST_RETRY_S = 1, 120
_NEVER = BandRules()


class Rules(msgspec.Struct, frozen=True):
    queue: QueueRules = QueueRules()
    begin_within_ms: float | None = None  # None: a few of the usual prefills
    evicts_lower: bool = False  # a streamed answer of a lower level ends for a request that waits


class BandCounts:
    """What became of the requests of one band that could not begin at once."""

    __slots__ = ("outcomes", "wait_seconds")

    def __init__(self) -> None:
        self.outcomes: dict[Verdict | str, int] = {}
        self.wait_seconds = Histogram(DURATION_SECONDS)


class Admission:
    """Off without rules: then every request passes. Times are of the caller's clock."""

    def __init__(self, router: Router, rules: Rules | None = None) -> None:
        self.router = router
        self.counts: dict[str, BandCounts] = {}  # by the name of the band
        self.is_draining = False
        self.gate = Gate(router)
        self.queue = WaitQueue(QueueRules())
        self.evictions = Evictions()
        self.lengths = AnswerLengths()
        self._recent = RecentLevels()
        self._lanes: dict[str | None, Lane] = {}
        self._groups: dict[str, str] = {}
        self._pool: Pool | None = None  # of those
        self.rules: Rules | None = None
        if rules is not None:
            self.use(rules, 0.0)

    def use(self, rules: Rules | None, now_s: float) -> None:
        """Put these rules in force. What waits keeps its place; without rules all of it goes at once."""
        if rules == self.rules and _groups(self.router.pool) == self._groups:
            return  # what each tenant was given, and how fast the queue moves, stays known
        before = self.queue.all()
        self.rules = rules
        self.gate.hint = None
        self.gate.begin_within_ms = None if rules is None else rules.begin_within_ms
        self._pool, self._groups, self._lanes = self.router.pool, _groups(self.router.pool), {}
        is_shared, self.queue = self.queue.is_shared, WaitQueue(QueueRules() if rules is None else rules.queue)
        self.queue.is_shared = is_shared
        for waiting in before:
            waiting.account = waiting.flow = None
            lane = waiting.lane
            waiting.lane = self.lane(lane.model, lane.subset, lane.tpot_ms, lane.context)
            if rules is None:
                waiting.decide("go")
            else:
                self._enter(waiting, now_s)

    def lane_of(self, model: str | None, subset: Collection[str] | None, request: RequestFacts) -> Lane:
        """Of this request. It waits for a pace only where an idle endpoint would keep it: there waiting helps.

        Nor does room at an endpoint that its prompt is too long for help it, and others need not wait behind it.
        """
        tpot_ms = inf if request.slo is None else request.slo.tpot_ms
        if tpot_ms < inf and all(e.speed.decode_ms_per_token > tpot_ms for e in self.router.pool.serving(model)):
            tpot_ms = inf
        return self.lane(model, subset, tpot_ms, self._context(model, request.tokens))

    def _context(self, model: str | None, tokens: int) -> float:
        """See `Lane.context`: the least that endpoints have of those whose context the prompt fits into."""
        table = self.router.pool.table(model)
        if table is not None and tokens <= table.shortest_length:
            return 0
        lengths = [inf if e._max_model_len is None else e._max_model_len for e in self.router.pool.serving(model)]
        fit = [length for length in lengths if length >= tokens]
        return 0 if len(fit) == len(lengths) else min(fit, default=0)

    def lane(
        self,
        model: str | None,
        subset: Collection[str] | None = None,
        tpot_ms: float = inf,
        context: float = 0,
    ) -> Lane:
        """Of requests that ask for `model`."""
        pool = self.router.pool
        if pool is not self._pool:
            self._pool, self._groups, self._lanes = pool, _groups(pool), {}
        lane = self._lanes.get(model)
        if lane is None:
            known = model if pool.serving(model) else None
            lane = Lane(known, "" if known is None else self._groups.get(known, ""))
            if known == model:  # any client may name any model
                self._lanes[model] = lane
        if subset is None and tpot_ms == inf and not context:
            return lane
        group = self.queue.groups.get(lane.group)
        if group is not None and sum(len(band.lanes) for band in group.bands.values()) >= _MOST_LANES:
            return lane
        return Lane(lane.model, lane.group, None if subset is None else frozenset(subset), tpot_ms, context)

    def band(self, level: int) -> BandRules:
        return _NEVER if self.rules is None else self.rules.queue.band(level)

    def passes(self, lane: Lane, level: int, now_s: float, request: RequestFacts | None = None) -> bool:
        """Whether a request may begin now without waiting. None: one of any length."""
        if self.rules is None:
            return True
        self._recent.came(lane.group, level, now_s)
        group = self.queue.groups.get(lane.group)
        if group is not None and any(
            waits == lane or self._is_open_to_waiting(waits, above, now_s)
            for above, band in group.bands.items()
            if above >= level
            for waits in band.lanes
        ):
            return False  # those are next
        return self._is_open_for(request, lane, level, now_s)

    def _gives_way(self, lane: Lane, level: int, now_s: float) -> bool:
        """Whether what waits at this level leaves more to higher ones than its share says, as requests of them come."""
        return self.band(level).share < 1 and self._recent.has_above(lane.group, level, now_s)

    def _is_open_to_waiting(self, lane: Lane, level: int, now_s: float) -> bool:
        gives_way = self._gives_way(lane, level, now_s)
        return self.gate.is_open(lane, self.band(level).share, now_s, gives_way=gives_way)

    def _is_open_for(
        self, request: RequestFacts | None, lane: Lane, level: int, now_s: float, *, gives_way: bool = False
    ) -> bool:
        """What is cached of a prompt is looked up only where it decides: others that run may share it."""
        is_open, share = partial(self.gate.is_open, gives_way=gives_way), self.band(level).share
        if request is None:
            return is_open(lane, share, now_s)
        if is_open(lane, share, now_s, request.tokens):
            return True
        if not is_open(lane, share, now_s):
            return False
        cached = self._cached(request, now_s)
        return bool(cached) and is_open(lane, share, now_s, request.tokens, cached)

    def _roomiest(self, request: RequestFacts, lane: Lane, now_s: float) -> frozenset[str]:
        return self.gate.roomiest(lane, now_s, request.tokens, self._cached(request, now_s))

    def _with_prefillers(self, roomiest: frozenset[str], subset: Collection[str] | None) -> frozenset[str]:
        """As the `subset` of a request, with those that compute prompts for others and answer nobody: no room is asked
        of these.
        """
        prefilling = self.router.pool.prefilling
        if not roomiest or not prefilling:
            return roomiest
        only = {e.address for able in prefilling.values() for e in able if e.spec.role == "prefill"}
        return roomiest | (only if subset is None else only.intersection(subset))

    def _cached(self, request: RequestFacts, now_s: float) -> Mapping[str, int]:
        """Tokens of the prompt by address."""
        held = self.router.index.match(request.prefix, now_s) if request.prefix else {}
        return {address: request.tokens_in(blocks) for address, blocks in held.items()}

    def enter(self, waiting: Waiting, now_s: float) -> bool:
        """Whether it waits from now on; if not, it has been decided as `full` or `shutting_down`."""
        if self.is_draining:
            self._decide(waiting, "shutting_down", now_s)
            return False
        return self._enter(waiting, now_s)

    def _enter(self, waiting: Waiting, now_s: float) -> bool:
        displaced = self.queue.enter(waiting, now_s)
        if displaced is None:
            self._decide(waiting, "full", now_s)
            return False
        for each in displaced:
            self._decide(each, "displaced", now_s)
        return True

    def admit(
        self,
        router: Router,
        request: RequestFacts,
        subset: Collection[str] | None,
        now_s: float,
        others: Sequence[Sequence[int]] = (),
    ) -> InFlight | Refusal:
        """As `router.admit`; where it chose an endpoint without room and others have some, one of those."""
        in_flight = router.admit(request, subset, now_s, others)
        if self.rules is None or isinstance(in_flight, Refusal):
            return in_flight
        chosen = self.router.pool.by_address.get(in_flight.address)
        lane = self.lane(request.model, subset)
        if chosen is None or self.gate.has_room(chosen, lane.group, now_s, own=in_flight.load):
            return in_flight
        in_flight.withdraw(now_s)
        lane = self.lane(request.model, subset, context=self._context(request.model, request.tokens))
        roomiest = self._roomiest(request, lane, now_s)
        elsewhere = router.admit(request, self._with_prefillers(roomiest, subset) or subset, now_s, others)
        if isinstance(elsewhere, Refusal):  # those with room are too slow, or cannot answer it
            return router.admit(request, subset, now_s, others)
        return elsewhere

    def began(self, in_flight: InFlight) -> float:
        """A request was given its endpoint: the engine time in ms that it takes there."""
        endpoint = self.router.pool.by_address.get(in_flight.address)
        if endpoint is None:
            return 0.0
        took_ms, prefill_ms = engine_ms(endpoint, in_flight.request, in_flight.decision.cached_tokens)
        if not is_refused_at_once(endpoint, in_flight.request.tokens):
            self.gate.began(self._groups.get(endpoint.model, ""), prefill_ms)
        return took_ms

    def answered(self, in_flight: InFlight, tenant: bytes, tokens: int, *, at_least: bool) -> None:
        """A request of `tenant` has ended, and its answers had `tokens`, or `at_least` so many."""
        endpoint = self.router.pool.by_address.get(in_flight.address)
        if endpoint is None:
            return
        expected = answer_tokens(endpoint, in_flight.request, 1.0)
        if not at_least or tokens > expected:
            self.lengths.observed(tenant, tokens, expected, endpoint.speed.answer_tokens)

    def refused(self, in_flight: InFlight) -> None:
        """It ended, and no engine has answered it: clients must not say for nothing how long prompts usually take."""
        endpoint = self.router.pool.by_address.get(in_flight.address)
        if endpoint is not None and not is_refused_at_once(endpoint, in_flight.request.tokens):
            _, prefill_ms = engine_ms(endpoint, in_flight.request, in_flight.decision.cached_tokens)
            self.gate.refused(self._groups.get(endpoint.model, ""), prefill_ms)

    def engine_ms(self, in_flight: InFlight, request: RequestFacts) -> float:
        """The engine time that `request` takes where it was sent."""
        endpoint = self.router.pool.by_address.get(in_flight.address)
        return 0.0 if endpoint is None else engine_ms(endpoint, request, in_flight.decision.cached_tokens)[0]

    def expected_ms(self, lane: Lane, request: RequestFacts) -> float:
        """The engine time in ms that a request would take, as far as is known before it has an endpoint."""
        serving = self.router.pool.serving(lane.model)
        endpoint = next((e for e in serving if lane.may_go_to(e)), None)
        return 1.0 if endpoint is None else max(1.0, engine_ms(endpoint, request, 0)[0])

    def expected_answer_tokens(self, model: str | None, request: RequestFacts) -> float:
        endpoint = next(iter(self.router.pool.serving(model)), None)
        return 0.0 if endpoint is None else answer_tokens(endpoint, request)

    def longest_useful_wait_s(self, lane: Lane, request: RequestFacts, now_s: float) -> float:
        """How long a request may wait and still meet its objective; infinite if it is served even then."""
        slo = request.slo
        if slo is None or not slo.refuses or slo.ttft_ms == inf:
            return inf
        cached = self._cached(request, now_s)
        return (slo.ttft_ms - least_first_token_ms(self.router.pool.serving(lane.model), request, cached)) / 1e3

    def most_for_pace_s(self, request: RequestFacts, longest_wait_s: float) -> float:
        """How long one that is served in any case waits for its pace: while its first token can be in time."""
        ttft_ms = inf if request.slo is None else request.slo.ttft_ms
        return min(_FOR_PACE * longest_wait_s, ttft_ms / 2e3)

    def leave(self, waiting: Waiting) -> None:
        """Its client is gone."""
        if self.queue.give_up(waiting):
            self._count(waiting.level, "client_gone")

    def release(self, now_s: float) -> bool:
        """Give endpoints to those who are next, as far as there is room. Whether there may be more to do at once."""
        over = self.queue.expire(now_s, AT_ONCE)  # clients may choose one moment for thousands
        for waiting in over:
            if waiting.otherwise is None:
                self._decide(waiting, "expired", now_s)
            else:
                (waiting.lane, waiting.expires_s), waiting.otherwise = waiting.otherwise, None
                self._enter(waiting, now_s)
        left = AT_ONCE
        for group in [name for name, group in self.queue.groups.items() if group.bands]:
            while left:
                opened: dict[tuple[Lane, int], bool] = {}

                def is_open(lane: Lane, level: int, opened: dict[tuple[Lane, int], bool] = opened) -> bool:
                    known = opened.get((lane, level))
                    if known is None:
                        known = opened[lane, level] = self._is_open_to_waiting(lane, level, now_s)
                    return known

                def fits(waiting: Waiting) -> bool:
                    lane, level = waiting.lane, waiting.level
                    gives_way = self._gives_way(lane, level, now_s)
                    return self._is_open_for(waiting.request, lane, level, now_s, gives_way=gives_way)

                taken = self.queue.next(group, is_open, now_s, fits)
                if taken is None:
                    break
                left -= 1
                took_ms = 0.0
                try:
                    took_ms = self._decide(taken.waiting, "go", now_s)
                finally:
                    self.queue.charge(taken, took_ms, now_s)
            self._evict_for(group, now_s)
        return not left or len(over) == AT_ONCE

    def _evict_for(self, group_name: str, now_s: float) -> None:
        """End one answer below the highest level that waits, if that has waited for long enough."""
        level, since_s = self._longest_at_the_top(group_name)
        if since_s > now_s - PATIENCE_S:
            return
        for lane in self.queue.groups[group_name].bands[level].lanes:
            addresses = {endpoint.address for endpoint in self.gate.endpoints(lane)}
            running = self.evictions.choose(group_name, level, addresses)
            if running is not None:
                self._count(running.level, "evicted")
                running.abort()
                return

    def _longest_at_the_top(self, group_name: str) -> tuple[int, float]:
        """The highest level that waits, and since when, where an answer may end for it; infinite where none may."""
        group = self.queue.groups.get(group_name)
        if self.rules is None or not self.rules.evicts_lower or group is None or not group.bands:
            return 0, inf
        level, band = next(iter(group.bands.items()))
        if not self.evictions.has_below(group_name, level):
            return level, inf
        return level, min(next(iter(lane.arrivals.values())).arrived_s for lane in band.lanes.values())

    def drain(self, now_s: float) -> None:
        """Nobody waits any more, and nobody will."""
        self.is_draining = True
        for waiting in self.queue.all():
            self.queue.remove(waiting)
            self._decide(waiting, "shutting_down", now_s)

    def may_have_room(self, endpoint: Endpoint, now_s: float) -> bool:
        """Whether what happened at `endpoint` is worth a `release`."""
        if not self.queue.requests:
            return False
        if not endpoint.health.healthy:
            return True  # those who wait for it alone must be refused
        if self.gate.has_room(endpoint, self._groups.get(endpoint.model, ""), now_s):
            self.gate.hint = endpoint
            return True
        return False

    def next_event_s(self) -> float:
        """When `release` must be called even if nothing happens."""
        due_s = self.queue.next_deadline_s
        for name, group in self.queue.groups.items():
            due_s = min(due_s, self._longest_at_the_top(name)[1] + PATIENCE_S)
            for lane in {lane for band in group.bands.values() for lane in band.lanes}:
                due_s = min(due_s, self.gate.next_room_s(lane))
        return due_s

    def retry_after_s(self, lane: Lane, level: int, tenant: bytes, now_s: float) -> int:
        """When to come back: once what waits now at this level or above has gone."""
        expected_ms = self.queue.expected_wait_ms(lane.group, level, tenant, now_s)
        return retry_after_s(expected_ms)

    def _decide(self, waiting: Waiting, verdict: Verdict, now_s: float) -> float:
        counts = self._count(waiting.level, verdict)
        if verdict in ("go", "expired"):
            counts.wait_seconds.observe(now_s - waiting.arrived_s)
        return waiting.decide(verdict)

    def _count(self, level: int, outcome: Verdict | str) -> BandCounts:
        name = self.band(level).name
        counts = self.counts.get(name)
        if counts is None:
            counts = self.counts[name] = BandCounts()
        counts.outcomes[outcome] = counts.outcomes.get(outcome, 0) + 1
        return counts


def retry_after_s(wait_ms: float) -> int:
    """Whole seconds, as a header has them."""
    return min(max(_LEAST_RETRY_S, ceil(wait_ms / 1e3)), _MOST_RETRY_S) if wait_ms < inf else _MOST_RETRY_S


def _groups(pool: Pool) -> dict[str, str]:
    """The group of every model and route: models that a route connects are one group, and so are their adapters.

    Of requests that name no model where they can go to one group only.
    """
    served = {route: tuple(dict.fromkeys(e.model for e in pool.serving(route))) for route in pool.routes}
    root = {model: model for model in pool.models}

    def found(model: str) -> str:
        while root[model] != model:
            model = root[model]
        return model

    for models in served.values():
        known = [found(model) for model in models if model in root]
        for model in known:
            root[model] = known[0]
    groups = {model: found(model) for model in pool.models}
    for route, models in served.items():
        groups[route] = next((groups[model] for model in models if model in groups), "")
    for name in pool.names:
        groups[name] = next((groups[endpoint.model] for endpoint in pool.serving(name)), "")
    of_any = {groups[endpoint.model] for endpoint in pool.serving(ANY_MODEL)}
    if len(of_any) == 1:  # who names no model waits with those who do; of several groups it would make one
        groups[ANY_MODEL] = of_any.pop()
    return groups
