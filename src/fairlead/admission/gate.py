"""Whether a request could begin now: at one endpoint, and at any of those that a lane may go to.

An endpoint has room while what waits for prefill there takes less than a bound, the engine's batch and KV cache are not
full, and it has not just refused. An idle one has room for anything. Everything is read from counts that are taken in
the step in which a request is released; reports only add to them. What is not reported, or stale, closes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from types import MappingProxyType
from typing import Final, NamedTuple

from fairlead.admission.waiting import Lane
from fairlead.core.endpoint import Endpoint
from fairlead.core.facts import RequestFacts
from fairlead.core.load import Load
from fairlead.core.peers import NO_LOAD
from fairlead.core.placement import Placement
from fairlead.core.running_limit import REFUSAL_S
from fairlead.core.slo import pace_ms

LEAST_BOUND_MS: Final = 1000.0
_PREFILLS: Final = 4.0  # usual ones, that may wait at an endpoint where no bound is configured
_LEAST_SHARED_MS: Final = 100.0  # a step or two of an engine: with less to compute it would pause between releases
_WEIGHT: Final = 0.01  # of the newest prefill in the usual one
_KV_FULL: Final = 0.95
_KV_BEHIND: Final = 0.5  # of its part of the KV cache: what may be in use where a level begins that gives way,
_COMPUTES: Final = 0.3  # and prompts take this share of the engine's time; if less, it is full of answers, not of work
NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class _Room(NamedTuple):
    """What an endpoint has room for: one more request while less than this is taken there."""

    waits_ms: float  # for prefill
    usual_ms: float  # of one prefill, for each request that the engine reports as waiting
    batch: float = 1.0  # share of the requests that it runs at most
    kv: float = _KV_FULL  # share of the KV cache, with the new request
    kv_before: float = _KV_FULL  # and without it, at an engine that computes prompts much of its time


class Gate:
    """Over the pool in force. `begin_within_ms` None: a few of the usual prefills, and a second at least."""

    __slots__ = ("_router", "_usual_ms", "begin_within_ms", "hint")

    def __init__(self, router: Placement, begin_within_ms: float | None = None) -> None:
        self._router = router
        self.begin_within_ms = begin_within_ms
        self.hint: Endpoint | None = None  # that may have room: looked at first
        self._usual_ms: dict[str, float] = {}  # of a prefill, by group

    def bound_ms(self, group: str) -> float:
        """What may wait for prefill at an endpoint that one more goes to."""
        if self.begin_within_ms is not None:
            return self.begin_within_ms
        return max(LEAST_BOUND_MS, _PREFILLS * self._usual_ms.get(group, 0.0))

    def _room(self, group: str, share: float = 1.0, *, gives_way: bool = False) -> _Room:
        """A level that waits and gives way keeps engines busy and no more: what waits in an engine goes before
        anything of a higher level that comes next, no queue of ours can change that, and what runs there takes the
        place of cached prefixes and makes each step longer.
        """
        usual_ms, bound_ms = self._usual_ms.get(group, 0.0), self.bound_ms(group)
        kv = kv_before = _KV_FULL * share
        if gives_way:
            bound_ms = min(bound_ms, max(_LEAST_SHARED_MS, usual_ms))
            kv_before = kv * _KV_BEHIND
        return _Room(bound_ms * share, usual_ms, share, kv, kv_before)

    def began(self, group: str, prefill_ms: float) -> None:
        """A request was released, whose prefill should take this long."""
        usual_ms = self._usual_ms.get(group, prefill_ms)
        self._usual_ms[group] = usual_ms + _WEIGHT * (prefill_ms - usual_ms)

    def refused(self, group: str, prefill_ms: float) -> None:
        """No engine answered what `began`: its prompt is not one of the usual ones."""
        usual_ms = self._usual_ms.get(group, 0.0)
        self._usual_ms[group] = max(0.0, usual_ms - _WEIGHT * prefill_ms) / (1 - _WEIGHT)

    def is_open(
        self,
        lane: Lane,
        share: float,
        now_s: float,
        tokens: int = 0,
        cached: Mapping[str, int] = NOTHING,
        *,
        gives_way: bool = False,
    ) -> bool:
        """Whether one of its endpoints has room, or it has none at all: then its requests must be refused.

        `tokens` are those of a prompt that must fit into the KV cache, without those `cached` there; 0: any. One that
        `gives_way`, as it has waited and requests of higher levels come, finds less room than one that just came:
        below saturation none is held back.
        """
        room, hint = self._room(lane.group, share, gives_way=gives_way), self.hint
        if (
            hint is not None
            and _may_go(lane, hint)
            and hint.address not in self._router.planner.draining
            and _keeps_pace(lane, hint)
            and _has_room(hint, room, now_s, tokens=tokens)
        ):
            serving = self._router.pool.serving(lane.model)
            if hint in serving:
                return True
        found = False
        for endpoint in self.endpoints(lane):
            found = True
            uncached = _uncached(endpoint, tokens, cached)
            if _keeps_pace(lane, endpoint) and _has_room(endpoint, room, now_s, tokens=uncached):
                self.hint = endpoint
                return True
        return not found

    def has_room(
        self,
        endpoint: Endpoint,
        group: str,
        now_s: float,
        *,
        own: Load = NO_LOAD,
        tokens: int = 0,
    ) -> bool:
        """Whether `endpoint` has room for one more of `tokens`, apart from its `own`, which was just sent there."""
        return _has_room(endpoint, self._room(group), now_s, own, tokens)

    def roomiest(
        self, lane: Lane, now_s: float, tokens: int = 0, cached: Mapping[str, int] = NOTHING
    ) -> frozenset[str]:
        """Addresses that have room; if none has, those whose engines are not full; empty if all are."""
        group = lane.group
        has_room = frozenset(
            e.address
            for e in self.endpoints(lane)
            if self.has_room(e, group, now_s, tokens=_uncached(e, tokens, cached))
        )
        return has_room or frozenset(e.address for e in self.endpoints(lane) if not _is_full(e, _Room(inf, 0.0), now_s))

    def next_room_s(self, lane: Lane) -> float:
        """When an endpoint may have room by the mere passing of time."""
        due_s = inf
        for endpoint in self.endpoints(lane):
            due_s = min(due_s, endpoint.prefills.due_s)
            refused_s = endpoint.running_limit.refused_s
            if refused_s is not None:
                due_s = min(due_s, refused_s + REFUSAL_S)
        return due_s

    def endpoints(self, lane: Lane) -> Iterator[Endpoint]:
        """As the router has them, without what drains while others are left: room there would let everything pass."""
        draining, found = self._router.planner.draining, False
        left_out: list[Endpoint] = []
        for endpoint in self._router.pool.serving(lane.model):
            if not _may_go(lane, endpoint):
                continue
            if endpoint.address in draining:
                left_out.append(endpoint)
            else:
                found = True
                yield endpoint
        if not found:
            yield from left_out


def _is_full(endpoint: Endpoint, room: _Room, now_s: float, own_requests: int = 0, tokens: int = 0) -> bool:
    """Whether the engine's batch is full, or its KV cache for `tokens` more, without its `own_requests` in flight."""
    load, report = endpoint._load, endpoint.report
    inflight = load.inflight_requests - own_requests
    if endpoint.running_limit.is_reached(inflight, room.batch, now_s):
        return True
    if not inflight or report.stale or report.kv_usage is None:
        return False
    usage = report.kv_usage
    if room.kv_before <= usage < room.kv and endpoint.prefills.busy_share(now_s) >= _COMPUTES:
        return True
    if report.kv_capacity_tokens:
        usage += (load.pending_prefill_tokens + tokens) / report.kv_capacity_tokens
    return usage >= room.kv


def engine_ms(endpoint: Endpoint, request: RequestFacts, cached_tokens: int) -> tuple[float, float]:
    """Time of the engine that a request takes there, and how much of it is its prefill.

    Prefills come one after the other. A token is decoded in one step with all others of the batch, so it costs its
    share of the step and what it slows the step by. A prompt that is too long takes no more than the longest would.
    """
    speed, length = endpoint.speed, endpoint._max_model_len
    tokens = request.tokens if length is None or request.tokens < length else length
    prefill_ms = speed.prefill_ms(tokens, cached_tokens)
    share = 1 / max(1, endpoint._load.inflight_requests + request.answers - 1) + speed.batch_slowdown
    decode_ms = answer_tokens(endpoint, request) * speed.decode_ms_per_token * min(1.0, share)
    return prefill_ms + decode_ms, prefill_ms


def answer_tokens(endpoint: Endpoint, request: RequestFacts, answer_length: float | None = None) -> float:
    """Those of a usual answer to its tenant there, or as many as the request allows; of each that it asks for.

    `answer_length`: the tenant's, if it is not to be that of the request.
    """
    factor, limit = request.answer_length if answer_length is None else answer_length, request.max_output_tokens
    usual = endpoint.speed.answer_tokens * factor
    return request.answers * (usual if limit is None or limit >= usual else limit)


def is_refused_at_once(endpoint: Endpoint, tokens: int) -> bool:
    """Whether it could never hold a prompt of so many tokens, and says so without computing any."""
    length, capacity = endpoint._max_model_len, endpoint.report.kv_capacity_tokens
    return (length is not None and tokens > length) or (capacity is not None and tokens > capacity)


def _uncached(endpoint: Endpoint, tokens: int, cached: Mapping[str, int]) -> int:
    """Tokens that it must have room for: none of a prompt that it refuses at once."""
    if is_refused_at_once(endpoint, tokens):
        return 0
    return max(0, tokens - cached.get(endpoint.address, 0)) if cached else tokens


def _may_go(lane: Lane, endpoint: Endpoint) -> bool:
    return endpoint.health.healthy and lane.may_go_to(endpoint)


def _keeps_pace(lane: Lane, endpoint: Endpoint) -> bool:
    return lane.tpot_ms == inf or pace_ms(endpoint) <= lane.tpot_ms


def _has_room(endpoint: Endpoint, room: _Room, now_s: float, own: Load = NO_LOAD, tokens: int = 0) -> bool:
    if endpoint.prefills.due_s <= now_s:
        endpoint.prefills.settle(now_s)
    load, report, speed = endpoint._load, endpoint.report, endpoint._speed
    if load.inflight_requests > own.inflight_requests:
        waits_ms = speed.pending_ms(load) - speed.pending_ms(own)
        if report.waiting_requests and not report.stale:  # some that by their estimates are done may still wait
            waits_ms = max(waits_ms, report.waiting_requests * room.usual_ms)
        if waits_ms > room.waits_ms:
            return False
    return not _is_full(endpoint, room, now_s, own.inflight_requests, tokens)
