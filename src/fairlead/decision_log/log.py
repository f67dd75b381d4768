"""The log of a running sidecar: the request path leaves references, a task beside it makes rows and writes files.

What waits is bounded in number and in size; what comes beyond is dropped and counted. A process that is killed loses
the rows of its last minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Literal

import structlog

from fairlead.core.facts import RequestFacts
from fairlead.core.feedback import Outcome
from fairlead.core.router import Decision
from fairlead.decision_log.columns import Anonymous, Ended

MOST_WAITING: Final = 4096  # requests
MOST_WAITING_LINKS: Final = 1 << 20  # of their prefix chains, some 40 MB
ROWS_IN_A_FILE: Final = 16_384
FILE_EVERY_S: Final = 60.0
_TAKE_S: Final = 0.25
_ROWS_AT_ONCE: Final = 8  # 0.1 ms of work, 0.5 ms with the longest prompts; requests go in between

Outcomes = Literal["written", "dropped", "failed"]
_WHOLE: Final = float(1 << 64)

log = structlog.get_logger("fairlead")


class DecisionLog:
    """`start`, then `add` on the request path, then `stop`."""

    def __init__(
        self,
        write: Callable[[Sequence[tuple[Any, ...]]], None],
        *,
        sample: float,
        models: Callable[[], Collection[str]],
    ) -> None:
        """`write` makes a file of rows, and raises where it cannot; it is called in a thread.

        `sample` is the share of sessions that are logged, whole ones; `models` are the pool's.
        """
        self._write_file = write
        self._sample = sample
        self._models = models
        self._anonymous = Anonymous()
        self._waiting: deque[Ended] = deque()
        self._waiting_links = 0
        self._rows: list[tuple[Any, ...]] = []
        self._begun_s = time.monotonic()
        self._task: asyncio.Task[None] | None = None
        self.counts: Counter[Outcomes] = Counter()

    def add(
        self, request: RequestFacts, decision: Decision, outcome: Outcome, endpoint: str, request_id: bytes
    ) -> None:
        """A request has ended."""
        if not self._sampled(request):
            return
        links = len(request.prefix)
        if len(self._waiting) >= MOST_WAITING or self._waiting_links + links > MOST_WAITING_LINKS:
            self.counts["dropped"] += 1
            return
        self._waiting_links += links
        self._waiting.append(Ended(request, decision, outcome, endpoint, request_id, time.time()))

    def start(self) -> None:
        """Begin to make rows and to write files, on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Write what is left."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._take(len(self._waiting))
        if self._rows:
            await self._write()

    async def _run(self) -> None:
        """Take what waits, and write a file a minute, or sooner when there is much. Runs until cancelled."""
        while True:
            await asyncio.sleep(_TAKE_S)
            while self._waiting:
                self._take(_ROWS_AT_ONCE)
                await asyncio.sleep(0)
                if len(self._rows) >= ROWS_IN_A_FILE:
                    await self._write()
            if self._rows and time.monotonic() - self._begun_s >= FILE_EVERY_S:
                await self._write()

    def _sampled(self, request: RequestFacts) -> bool:
        """By session, and without one by prompt, so that turns and tries are in or out together."""
        if self._sample >= 1.0:
            return True
        if request.session is not None:
            drawn = int.from_bytes(request.session[:8])
        else:
            drawn = hash((request.prefix[:1], request.tokens)) % (1 << 64)
        return drawn < self._sample * _WHOLE

    def _take(self, most: int) -> None:
        models = self._models()
        if not self._rows:
            self._begun_s = time.monotonic()
        for _ in range(min(most, len(self._waiting))):
            ended = self._waiting.popleft()
            self._waiting_links -= len(ended.request.prefix)
            self._rows.append(self._anonymous.row(ended, models))

    async def _write(self) -> None:
        rows, self._rows = self._rows, []
        self.counts["failed"] += len(rows)  # until it is known better: a cancelled write may be half done
        try:
            await asyncio.to_thread(self._write_file, rows)
        except Exception as error:  # a full disk, or a fault of ours: the next rows may fare better
            log.error("decisions were not written", rows=len(rows), reason=str(error) or repr(error))
            return
        self.counts["failed"] -= len(rows)
        self.counts["written"] += len(rows)
