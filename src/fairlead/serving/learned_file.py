"""The file that keeps what was learned, and which endpoints drain, over restarts: read as serving begins, written now
and then and at the end, and at once after a drain. What it says of engines that have to be discovered waits for them.

One that cannot be read, or that another version wrote, is left out with a line in the log: all is then learned again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from fairlead.core.learned_state import LearnedState, pieces, restore
from fairlead.extproc.services import Services
from fairlead.files import replace_file

SAVE_S: Final = 60.0
_DRAINS_S: Final = 0.5
_AT_ONCE_S: Final = 0.001  # of encoding, which keeps requests waiting: in a thread it would hold the interpreter, too
_PAUSE_S: Final = 0.01  # after it: 1,000 engines take a second and a half, 10,000 a quarter of a minute
MOST_BYTES: Final = 256 << 20  # all samples of the 10,000 engines that may be listed have some 140 MB
_NOT_USED: Final = "what was learned before is not used; all is learned again"

log = structlog.get_logger("fairlead")


class LearnedFile:
    """`observe.state` of the configuration in force, relative to `folder`; without it nothing is kept."""

    def __init__(self, services: Services, folder: Path) -> None:
        self._services = services
        self._folder = folder
        self._awaits_pool: LearnedState | None = None  # what was read, until there are engines that it may be of
        self._saved_answers = 0  # observed until then
        self._saved_draining: set[str] = set()

    @property
    def path(self) -> Path | None:
        state = self._services.config.observe.state
        return None if state is None else self._folder / state

    def load(self) -> None:
        """Read the file, and put what it knows in force as soon as the pool is known."""
        path, services = self.path, self._services
        if path is None:
            return
        try:
            if path.stat().st_size > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
            state = msgspec.json.decode(path.read_bytes(), type=LearnedState)
        except (FileNotFoundError, NotADirectoryError):  # it is not written yet
            return
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            log.warning(_NOT_USED, file=str(path), reason=str(error))
            return
        self._saved_draining = set(state.draining)
        services.router.planner.draining |= self._saved_draining
        self._awaits_pool = state
        self.pool_changed()

    def pool_changed(self) -> None:
        """Call it after each change of the pool."""
        state, services = self._awaits_pool, self._services
        if state is None or not services.pool_is_known or not services.router.pool.endpoints:
            return
        self._awaits_pool = None
        try:
            restore(state, services.learner, services.router.pool, now_s=services.clock_s(), unix_s=time.time())
        except (ArithmeticError, ValueError) as error:  # of numbers that no sidecar writes
            services.learner.forget_all_but(())
            log.warning(_NOT_USED, file=str(self.path), reason=str(error))
            return
        log.info("goes on with what was learned before", file=str(self.path), engines=len(state.engines))

    async def keep(self) -> None:
        """Write the file once a minute if there is anything new, and soon after a drain. Runs until cancelled."""
        saved_s = self._services.clock_s()
        while True:
            await asyncio.sleep(_DRAINS_S)
            now_s = self._services.clock_s()
            if now_s - saved_s >= SAVE_S or self._services.router.planner.draining != self._saved_draining:
                saved_s = now_s
                await self.save(_PAUSE_S)

    async def save(self, pause_s: float = 0.0) -> None:
        """Write the file if there is anything new, with pauses in which requests are served."""
        path, services = self.path, self._services
        answers, draining = services.recorder.observations, set(services.router.planner.draining)
        if path is None or (answers == self._saved_answers and draining == self._saved_draining):
            return
        if self._awaits_pool is not None:  # the file still says more than this sidecar
            return
        parts: list[bytes] = []
        began_s = time.perf_counter()
        for part in pieces(services.learner, now_s=services.clock_s(), unix_s=time.time(), draining=draining):
            parts.append(part)
            if time.perf_counter() - began_s >= _AT_ONCE_S:
                await asyncio.sleep(pause_s)
                began_s = time.perf_counter()
        try:
            await asyncio.to_thread(_write, path, parts)
        except OSError as error:
            log.warning("what was learned cannot be saved", file=str(path), reason=error.strerror or str(error))
        self._saved_answers, self._saved_draining = answers, draining  # not where it was interrupted


def _write(path: Path, parts: Sequence[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, *parts)
