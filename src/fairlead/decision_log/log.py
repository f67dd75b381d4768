"""The log of a running sidecar: the request path stores references, a background task makes rows and writes files.

The queue is bounded in number and in size; requests beyond are dropped and counted. A process that is killed loses the
rows of its last minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal

import structlog

from fairlead.core.facts import RequestFacts
from fairlead.core.policy import Ended
from fairlead.decision_log.columns import Anonymous
from fairlead.decision_log.uploads import Uploads

MOST_WAITING: Final = 4096  # requests
MOST_WAITING_LINKS: Final = 1 << 20  # links of their prefix chains, some 40 MB
ROWS_IN_A_FILE: Final = 16_384
FILE_EVERY_S: Final = 60.0
_TAKE_S: Final = 0.25
_ROWS_AT_ONCE: Final = 8  # 0.1 ms of work, 0.5 ms with the longest prompts; requests run in between

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
        uploads: Uploads | None = None,
    ) -> None:
        """`write` makes a file of rows, and raises where it cannot; it is called in a thread.

        `sample` is the share of sessions that are logged in full; `models` are the pool's. `uploads` brings the files
        elsewhere.
        """
        self._write_file = write
        self._sample = sample
        self._models = models
        self.uploads = uploads
        self._anonymous = Anonymous()
        self._waiting: deque[tuple[Ended, float]] = deque()  # with Unix times
        self._waiting_links = 0
        self._rows: list[tuple[Any, ...]] = []
        self._begun_s = time.monotonic()
        self._task: asyncio.Task[None] | None = None
        self.counts: Counter[Outcomes] = Counter({"written": 0, "dropped": 0, "failed": 0})

    def add(self, ended: Ended) -> None:
        """Record that a request has ended."""
        if not self._sampled(ended.request):
            return
        links = len(ended.request.prefix)
        if len(self._waiting) >= MOST_WAITING or self._waiting_links + links > MOST_WAITING_LINKS:
            self.counts["dropped"] += 1
            return
        self._waiting_links += links
        self._waiting.append((ended, time.time()))

    def start(self) -> None:
        """Begin to make rows and to write files, on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        if self.uploads is not None:
            self.uploads.start()

    async def stop(self) -> None:
        """Write the rows that are left."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._take(len(self._waiting))
        if self._rows:
            await self._write()
        if self.uploads is not None:
            await self.uploads.stop()

    async def _run(self) -> None:
        """Take what is queued, and write a file each minute, or sooner if there are many rows. Runs until cancelled."""
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
        """Sampled by session, or by prompt if there is none, so that turns and retries are in or out together."""
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
            ended, unix_s = self._waiting.popleft()
            self._waiting_links -= len(ended.request.prefix)
            self._rows.append(self._anonymous.row(ended, unix_s, models))

    async def _write(self) -> None:
        rows, self._rows = self._rows, []
        outcome: Outcomes = "failed"  # a cancelled write may be half done
        try:
            await asyncio.to_thread(self._write_file, rows)
            outcome = "written"
        except Exception as error:  # a full disk, or a bug of ours: the next rows may succeed
            log.error("decisions were not written", rows=len(rows), reason=str(error) or repr(error))
        finally:  # once: a counter that went back would be a restart, and all that it had counted new failures
            self.counts[outcome] += len(rows)


class NoLog:
    """Decisions are not logged."""

    counts: Mapping[Outcomes, int] = MappingProxyType({})
    uploads: None = None

    def add(self, ended: Ended) -> None:
        """Nothing is kept."""

    def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to write."""
