"""Files of a decision log on their way to an object store: they wait in a spool folder until the store has them.

Nothing is lost while the store is away, until the spool is full; then the oldest file goes, and is counted. Files that
a killed process left are sent by the next one. An upload that is repeated writes the same object again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import structlog

from fairlead.decision_log.location import why_not

LONGEST_PAUSE_S: Final = 60.0
LONGEST_END_S: Final = 10.0  # a sidecar that ends sends for so long; the next one sends the rest
_FIRST_PAUSE_S: Final = 1.0
_LOOK_EVERY_S: Final = 1.0

UploadOutcome = Literal["uploaded", "failed", "lost"]

log = structlog.get_logger("fairlead")


class UnreadableError(Exception):
    """A file of the spool is damaged, so that no store will ever have it."""


class Uploads:
    """`start`, then `stop`. One file at a time, the oldest first."""

    def __init__(self, spool: Path, pattern: str, upload: Callable[[Path], None]) -> None:
        """`upload` puts one file into the store and raises where it cannot; it is called in a thread."""
        self._spool = spool
        self._pattern = pattern
        self._upload = upload
        self._task: asyncio.Task[None] | None = None
        self._away = False
        self.counts: Counter[UploadOutcome] = Counter({"uploaded": 0, "failed": 0, "lost": 0})
        self.waiting_bytes = 0  # when last looked

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Send what waits; what the store does not take now is left for the next start."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if not self._away:
            await self._send_all(time.monotonic() + LONGEST_END_S)

    async def _run(self) -> None:
        """Runs until cancelled."""
        pause_s = _FIRST_PAUSE_S
        while True:
            if await self._send_all():
                pause_s = _FIRST_PAUSE_S
                await asyncio.sleep(_LOOK_EVERY_S)
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _send_all(self, until_s: float = float("inf")) -> bool:
        """Whether the store took what was waiting, or as much as could be sent `until_s`."""
        try:
            for file in await asyncio.to_thread(self._waiting):
                if time.monotonic() > until_s:
                    break
                await asyncio.to_thread(self._send, file)
        except Exception as error:  # the store is away, or refuses, or the spool cannot be read: it may work later
            self.counts["failed"] += 1
            if not self._away:  # said once, not at each try
                log.warning("the store of decisions takes no files; they wait", reason=why_not(error))
            self._away = True
            return False
        if self._away:
            log.info("the store of decisions takes files again")
        self._away = False
        return True

    def _waiting(self) -> list[Path]:
        """Oldest first."""
        found = []
        size = 0
        for file in sorted(self._spool.glob(self._pattern)):
            with contextlib.suppress(FileNotFoundError):  # removed by another sidecar, or to make room
                size += file.stat().st_size
                found.append(file)
        self.waiting_bytes = size
        return found

    def _send(self, file: Path) -> None:
        try:
            size = file.stat().st_size
            self._upload(file)
        except UnreadableError:
            file.rename(file.with_name(f".damaged-{file.name}"))
            self.counts["lost"] += 1
            return
        except FileNotFoundError:
            if file.exists():  # it is the bucket that is not there
                raise
            return  # another sidecar with this spool sent it, or it went to make room
        file.unlink(missing_ok=True)
        self.waiting_bytes = max(0, self.waiting_bytes - size)
        self.counts["uploaded"] += 1
