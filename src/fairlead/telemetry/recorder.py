"""What the request path leaves behind: plain counts, and the last decisions for people to read.

Nothing here locks, logs or allocates without bound; `telemetry.metrics` turns the counts into Prometheus text when it
is asked for them.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from fairlead.core.facts import RequestFacts
from fairlead.core.learning import Observation
from fairlead.core.lengths import BUCKETS
from fairlead.core.moves import told
from fairlead.core.ranking import Policy, Ranked
from fairlead.core.router import Decision

if TYPE_CHECKING:  # it knows the configuration, which need not be loaded to count
    from fairlead.decision_log.log import DecisionLog

KEPT_DECISIONS: Final = 1000
_COUNTED_AT_ONCE: Final = 64

DECISION_SECONDS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25)
COST_MILLISECONDS: Final = (1.0, 5.0, 20.0, 100.0, 500.0, 2000.0, 10_000.0, 60_000.0)
DURATION_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
COST_TERMS: Final = ("rtt", "prefill", "queue", "decode", "total")


class Histogram:
    """Counts by upper bound; the last count is of values above every bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


class DecisionRecord(msgspec.Struct, frozen=True, gc=False):
    """One decision as the admin page shows it. It holds no prompt text and no session id."""

    at: float  # Unix time, seconds
    request_id: str
    asked: str
    language: str
    bucket: str
    tokens: int
    cached_tokens: int  # of them, expected at the chosen endpoint
    attempted: tuple[str, ...]
    model: str
    endpoints: tuple[str, ...]
    why: str
    considered: int
    best: tuple[Ranked, ...]
    policy: Policy
    migration: str  # of its session: how and whereto, or why it stays on a hot host; empty: nothing spoke for a move


class EndpointCounts:
    """What one endpoint was chosen for, since the start. Retries of the gateway elsewhere do not change it."""

    __slots__ = ("decisions", "prefix_hit_tokens", "prompt_tokens")

    def __init__(self) -> None:
        self.decisions = 0
        self.prompt_tokens = 0
        self.prefix_hit_tokens = 0


class _Decided(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a decision until it is counted."""

    at: float
    asked: str
    language: str
    bucket: int
    tokens: int
    attempted: tuple[str, ...]
    decision: Decision
    request_id: bytes
    duration_s: float


class Recorder:
    """Written by the request path, read by the admin server on the same event loop, which must `settle` first.

    Decisions are counted some at a time: between two requests' other work, caches cold, to count one took some ten
    microseconds of the time to decide.
    """

    def __init__(self) -> None:
        self.decisions: deque[DecisionRecord] = deque(maxlen=KEPT_DECISIONS)
        self.requests: dict[tuple[str, str, str, int], int] = {}  # by route, model, endpoint, code
        self.durations: dict[str, Histogram] = {}  # by model
        self.attempts: dict[str, int] = {}  # by model
        self.prompt_tokens: dict[str, int] = {}  # by model
        self.prefix_hit_tokens: dict[str, int] = {}  # by model
        self.by_endpoint: dict[str, EndpointCounts] = {}  # by address
        self.decision_seconds = Histogram(DECISION_SECONDS)
        self.cost_ms = {term: Histogram(COST_MILLISECONDS) for term in COST_TERMS}
        self.first_token_seconds: dict[str, Histogram] = {}  # by model, of observed answers
        self.observations = 0
        self.reloads_refused = 0
        self.stream_failures = 0
        self.last_stream_failure = ""
        self.log: DecisionLog | None = None
        self._decided: list[_Decided] = []  # not counted yet

    def decided(self, request: RequestFacts, decision: Decision, request_id: bytes, duration_s: float) -> None:
        """A request was given an endpoint, after `duration_s` of work."""
        self._decided.append(
            _Decided(
                time.time(),
                request.model,
                request.language,
                request.bucket,
                request.tokens,
                request.attempted,
                decision,
                request_id,
                duration_s,
            )
        )
        if len(self._decided) == _COUNTED_AT_ONCE:
            self.settle()

    def settle(self) -> None:
        """Count the decisions that were not counted yet."""
        decided, self._decided = self._decided, []
        for each in decided:
            self._count(each)
            self.decisions.append(_record(each))

    def _count(self, decided: _Decided) -> None:
        decision, tokens = decided.decision, decided.tokens
        model, best = decision.model, decision.best
        self.attempts[model] = self.attempts.get(model, 0) + 1
        self.prompt_tokens[model] = self.prompt_tokens.get(model, 0) + tokens
        self.prefix_hit_tokens[model] = self.prefix_hit_tokens.get(model, 0) + decision.cached_tokens
        address = decision.addresses[0]
        counts = self.by_endpoint.get(address)
        if counts is None:
            counts = self.by_endpoint[address] = EndpointCounts()
        counts.decisions += 1
        counts.prompt_tokens += tokens
        counts.prefix_hit_tokens += decision.cached_tokens
        self.decision_seconds.observe(decided.duration_s)
        terms = decision.terms(best[0]) if best else None
        if terms is not None:
            cost_ms = self.cost_ms
            cost_ms["rtt"].observe(terms.rtt_ms)
            cost_ms["prefill"].observe(terms.prefill_ms)
            cost_ms["queue"].observe(terms.queue_ms)
            cost_ms["decode"].observe(terms.decode_ms)
            cost_ms["total"].observe(terms.total_ms())

    def ended(self, route: str, model: str, endpoint: str, code: int, duration_s: float) -> None:
        """A request ended with `code`; model and endpoint are empty where Fairlead answered itself."""
        key = (route, model, endpoint, code)
        self.requests[key] = self.requests.get(key, 0) + 1
        if not model:
            return
        durations = self.durations.get(model)
        if durations is None:
            durations = self.durations[model] = Histogram(DURATION_SECONDS)
        durations.observe(duration_s)

    def observed(self, seen: Observation) -> None:
        """An answer was observed in full."""
        self.observations += 1
        if seen.first_token_ms is not None:
            durations = self.first_token_seconds.get(seen.model)
            if durations is None:
                durations = self.first_token_seconds[seen.model] = Histogram(DURATION_SECONDS)
            durations.observe(seen.first_token_ms / 1e3)

    def stream_failed(self, cause: str) -> None:
        """A fault of ours while handling a message; the request went on without us."""
        self.stream_failures += 1
        self.last_stream_failure = cause


def _record(decided: _Decided) -> DecisionRecord:
    decision = decided.decision
    return DecisionRecord(
        at=decided.at,
        request_id=decided.request_id[:64].decode("latin-1"),
        asked=decided.asked,
        language=decided.language,
        bucket=BUCKETS[decided.bucket],
        tokens=decided.tokens,
        cached_tokens=decision.cached_tokens,
        attempted=tuple([name[:64] for name in decided.attempted]),
        model=decision.model,
        endpoints=decision.addresses,
        why=decision.why,
        considered=decision.considered,
        best=decision.best,
        policy=decision.policy,
        migration=told(decision.migration),
    )
