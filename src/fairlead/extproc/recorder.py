"""What the request path leaves behind: plain counts, and the last decisions for people to read.

Nothing here locks, logs or allocates without bound; `admin.metrics` turns the counts into Prometheus text when it
is asked for them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from typing import Final, Literal, get_args

import msgspec

from fairlead.api.refusals import HttpAnswer
from fairlead.core.facts import RequestFacts
from fairlead.core.histogram import DURATION_SECONDS, Histogram
from fairlead.core.lengths import BUCKETS
from fairlead.core.moves import describe_move
from fairlead.core.observation import Observation
from fairlead.core.policy import Decision, Ended, Outcome, Policy, Ranked
from fairlead.core.prefill_decode import PrefillChoice

KEPT_DECISIONS: Final = 1000
MOST_SERIES: Final = 8192  # of requests; names that come later are counted together, under none
GONE: Final = "gone"  # the name of all endpoints that left the pool, in counts of requests
_COUNTED_AT_ONCE: Final = 64
_SHOWN_ID_BYTES: Final = 64
_LEAST_ERROR: Final = 400

DECISION_SECONDS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25)
COST_MILLISECONDS: Final = (1.0, 5.0, 20.0, 100.0, 500.0, 2000.0, 10_000.0, 60_000.0)
Unlearned = Literal["cut", "stalled"]  # why nothing was learned from an answer that was observed
COST_TERMS: Final = ("rtt", "fixed", "prefill", "queue", "decode", "adapter", "total")


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
    prefill: PrefillChoice | None  # where its prompt is computed; None: there was nothing to choose from
    migration: str  # of its session: how and where to, or why it stays on a hot endpoint; empty: no reason to move


class Ending(msgspec.Struct, frozen=True, gc=False):
    """How one request ended, for people who ask for it by its id."""

    at: float  # Unix time, seconds
    request_id: bytes
    route: str
    model: str  # this and `endpoint` are empty where Fairlead answered itself
    endpoint: str
    code: int
    duration_s: float  # from its headers to its end
    outcome: Outcome | None = None
    refusal: bytes = b""  # the body of what Fairlead answered


class EndpointCounts:
    """What one endpoint was chosen for, since the start. Retries of the gateway at other endpoints do not change it."""

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

    Decisions are counted in batches: counting each one on the request path, with cold caches, would add some ten
    microseconds to the time to decide.
    """

    def __init__(self) -> None:
        self.decisions: deque[DecisionRecord] = deque(maxlen=KEPT_DECISIONS)
        self.endings: deque[Ending] = deque(maxlen=KEPT_DECISIONS)
        self.refusals: deque[Ending] = deque(maxlen=KEPT_DECISIONS)  # apart: a flood of them displaces no ending
        self.requests: dict[tuple[str, str, str, int], int] = {}  # by route, model, endpoint, code
        self.refused_for: dict[tuple[str, str], int] = {}  # by route, and the code of our error
        self.durations: dict[str, Histogram] = {}  # by model
        self.attempts: dict[str, int] = {}  # by model
        self.prompt_tokens: dict[str, int] = {}  # by model
        self.prefix_hit_tokens: dict[str, int] = {}  # by model
        self.by_endpoint: dict[str, EndpointCounts] = {}  # by address
        self.decision_seconds = Histogram(DECISION_SECONDS)
        self.cost_ms = {term: Histogram(COST_MILLISECONDS) for term in COST_TERMS}
        self.first_token_seconds: dict[str, Histogram] = {}  # by model, of observed answers
        self.observations = 0
        self.unlearned: dict[Unlearned, int] = dict.fromkeys(get_args(Unlearned), 0)
        self.reloads_refused = 0
        self.stream_failures = 0
        self.last_stream_failure = ""
        self.out_of_order_messages = 0
        self.held_streams = 0  # until their first event
        self.refused_streams = 0  # of those
        self.running_streams = 0
        self.background_failures = 0
        self.last_background_failure = ""
        self._decided: list[_Decided] = []  # not counted yet

    def decided(self, request: RequestFacts, decision: Decision, request_id: bytes, duration_s: float) -> None:
        """A request was given an endpoint, after `duration_s` of work."""
        self._decided.append(
            _Decided(
                time.time(),
                request.model or "",
                request.language,
                request.bucket,
                request.tokens,
                request.attempted,
                decision,
                request_id[:_SHOWN_ID_BYTES],
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
            cost_ms["fixed"].observe(terms.fixed_ms)
            cost_ms["prefill"].observe(terms.prefill_ms)
            cost_ms["queue"].observe(terms.queue_ms)
            cost_ms["decode"].observe(terms.decode_ms)
            if terms.adapter_ms:
                cost_ms["adapter"].observe(terms.adapter_ms)
            cost_ms["total"].observe(terms.total_ms())

    def ended(self, route: str, ended: Ended) -> None:
        """A request that was decided ended."""
        model, endpoint, outcome = ended.decision.model, ended.address, ended.outcome
        self._count_end(route, model, endpoint, outcome.code)
        shown_id, duration_s = ended.request_id[:_SHOWN_ID_BYTES], ended.ended_s - ended.begun_s
        self.endings.append(Ending(time.time(), shown_id, route, model, endpoint, outcome.code, duration_s, outcome))
        durations = self.durations.get(model)
        if durations is None:
            durations = self.durations[model] = Histogram(DURATION_SECONDS)
        durations.observe(duration_s)

    def refused(self, route: str, answer: HttpAnswer, duration_s: float, request_id: bytes) -> None:
        """Fairlead answered a request itself."""
        self._count_end(route, "", "", answer.status)
        shown_id = request_id[:_SHOWN_ID_BYTES]
        is_error = answer.status >= _LEAST_ERROR
        if is_error:
            key = (route, answer.details.removeprefix("fairlead_"))
            if key not in self.refused_for and len(self.refused_for) >= MOST_SERIES:
                key = ("", key[1])
            self.refused_for[key] = self.refused_for.get(key, 0) + 1
        body = answer.body if is_error else b""  # a list of models may be long
        self.refusals.append(Ending(time.time(), shown_id, route, "", "", answer.status, duration_s, refusal=body))

    def _count_end(self, route: str, model: str, endpoint: str, code: int) -> None:
        key = (route, model, endpoint, code)
        if key not in self.requests and len(self.requests) >= MOST_SERIES:  # a pool without engines knows every name
            key = ("", model, endpoint, code)
        self.requests[key] = self.requests.get(key, 0) + 1

    def forget_all_but(self, addresses: Collection[str]) -> None:
        """Others left the pool. Requests that ended there stay counted, under one name for all of them."""
        self.settle()
        self.by_endpoint = {address: counts for address, counts in self.by_endpoint.items() if address in addresses}
        gone = [key for key in self.requests if key[2] and key[2] != GONE and key[2] not in addresses]
        for route, model, endpoint, code in gone:
            key = (route, model, GONE, code)
            self.requests[key] = self.requests.get(key, 0) + self.requests.pop((route, model, endpoint, code))

    def story(self, request_id: str) -> tuple[list[DecisionRecord], list[Ending]]:
        """What is kept of the requests with this id: decisions, and how they ended, each oldest first."""
        self.settle()
        # Shown ids are the header's bytes, each as one character; people may also ask by the text that they wrote.
        encoded = (request_id.encode("latin-1", "replace"), request_id.encode(errors="replace"))
        wanted = {each[:_SHOWN_ID_BYTES] for each in encoded}
        endings = [each for kept in (self.refusals, self.endings) for each in kept if each.request_id in wanted]
        shown = {each.decode("latin-1") for each in wanted}
        return [each for each in self.decisions if each.request_id in shown], endings

    def observed(self, seen: Observation) -> None:
        """An answer was observed in full."""
        self.observations += 1
        if seen.first_token_ms is not None:
            durations = self.first_token_seconds.get(seen.model)
            if durations is None:
                durations = self.first_token_seconds[seen.model] = Histogram(DURATION_SECONDS)
            durations.observe(seen.first_token_ms / 1e3)

    def stream_failed(self, cause: str) -> None:
        """An internal error while handling a message; the request went on without Fairlead."""
        self.stream_failures += 1
        self.last_stream_failure = cause

    def background_failed(self, cause: str) -> None:
        """An internal error in a background task; the task goes on at its next turn."""
        self.background_failures += 1
        self.last_background_failure = cause


def _record(decided: _Decided) -> DecisionRecord:
    decision = decided.decision
    return DecisionRecord(
        at=decided.at,
        request_id=decided.request_id.decode("latin-1"),
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
        prefill=decision.prefill,
        migration=describe_move(decision.migration),
    )
