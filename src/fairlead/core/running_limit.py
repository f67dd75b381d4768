"""How many requests one engine runs at once: learned, as engines do not report their limit.

An engine that leaves requests waiting for longer than their prefills explain has no room for them, in its batch or in
its KV cache, whichever is less: what is in flight there without those that wait is what it can run now. While it runs
all that it has, the limit is tried a little higher. An engine that refuses a request because its queue is full gives a
limit too.
"""

from __future__ import annotations

from typing import Final

from fairlead.core.reported import EngineReport

REFUSAL_S: Final = 1.0  # how long a refusal closes an engine that reports nothing newer
_EXPLAINED: Final = 2.0  # times what the prefills should take: they explain a wait of up to this,
_EXPLAINED_S: Final = 0.5  # and one of up to this in any case
_SLACK: Final = 16  # running requests for each one that may wait: it keeps the engine busy between two reports
_GROWTH: Final = 8  # the limit grows by one, and by this part of itself


class RunningLimit:
    """`requests` in flight at most; None until the engine has had too many."""

    __slots__ = ("_explained_until_s", "refused_s", "requests")

    def __init__(self) -> None:
        self.requests: int | None = None
        self.refused_s: float | None = None  # an engine's "my queue is full", which nothing has followed yet
        self._explained_until_s: float | None = None

    def reported(self, report: EngineReport, inflight: int, pending_prefill_ms: float) -> None:
        """The engine's step was seen, with `inflight` requests sent to it that have not ended."""
        waiting, now_s = report.waiting_requests, report.read_s
        if waiting is None or now_s is None or report.stale:
            return
        running, limit = max(0, inflight - waiting), self.requests
        if waiting <= 1 + running // _SLACK:
            self._explained_until_s = self.refused_s = None
            if limit is not None and inflight >= limit:
                self.requests = limit + 1 + limit // _GROWTH
        elif self._explained_until_s is None:
            self._explained_until_s = now_s + max(_EXPLAINED_S, _EXPLAINED * pending_prefill_ms / 1e3)
        elif now_s >= self._explained_until_s:
            self.requests = max(1, running)

    def refused(self, inflight: int | None, now_s: float) -> None:
        """It answered that its queue is full; `inflight` includes the refused request. None: not known well enough."""
        self.refused_s = now_s
        if inflight is not None:
            self.requests = max(1, inflight - 1)

    def is_reached(self, inflight: int, share: float, now_s: float) -> bool:
        """Whether one request more would wait in the engine for another to end. `share` of the limit may be used."""
        if self.refused_s is not None and 0 <= now_s - self.refused_s < REFUSAL_S:
            return True
        limit = self.requests
        return limit is not None and inflight > 0 and inflight >= (limit + 1 + limit // _SLACK) * share
