"""Child processes: each has a name, a log and an owner, and none outlives the block that started it, nor do its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Never, Self, TypeVar

import httpx

_READY_WITHIN_S: Final = 30.0  # four Python processes start at once, on a laptop perhaps beside a build
_STOP_WITHIN_S: Final = 5.0
_POLL_S: Final = 0.03
_TAIL_LINES: Final = 12
_FAIRLEAD: Final = (sys.executable, "-m", "fairlead")

T = TypeVar("T")


class ChildError(Exception):
    """A child ended by itself or did not become ready; the text ends with the last lines of its log."""


class Child:
    """`async with Child(...) as child:` runs `program` with `arguments` until the block ends.

    `environment` is added to this process's own.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log_path: Path,
        *,
        program: Sequence[str] = _FAIRLEAD,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._command = (*program, *arguments)
        self._environment = {**os.environ, **(environment or {})}
        self._log_path = log_path
        self._process: asyncio.subprocess.Process | None = None

    async def until_ready(self, url: str, within_s: float = _READY_WITHIN_S) -> None:
        """Wait for `url` to answer 200."""
        await while_running(self._answers(url, within_s), self.ended())

    async def ended(self) -> Never:
        """Wait for the process to end, and raise: a child of the demo never ends by itself."""
        assert self._process is not None
        status = await self._process.wait()
        raise self._error(f"ended with status {status}")

    def kill(self) -> None:
        """End it and its own children at once, as a machine that fails would."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def __aenter__(self) -> Self:
        with self._log_path.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *_ends_with_parent(),
                *self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which stops its children in order
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        try:
            if self._process.returncode is None:
                self._process.terminate()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_STOP_WITHIN_S):
                        await self._process.wait()
        finally:
            self.kill()  # what is left of its group, even where it has ended itself
            await self._process.wait()

    async def _answers(self, url: str, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s), httpx.AsyncClient(trust_env=False) as client:
                while True:
                    if await is_answering(client, url):
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise self._error(f"was not ready within {within_s:g} s") from None

    def _error(self, what: str) -> ChildError:
        return ChildError(f"{self._name} {what}; its last words:\n{log_tail(self._log_path)}")


async def is_answering(client: httpx.AsyncClient, url: str) -> bool:
    try:
        response = await client.get(url, timeout=2.0)
    except httpx.TransportError:
        return False
    return response.status_code == 200


async def all_of(*works: Coroutine[Any, Any, None]) -> None:
    """Run `works` beside each other; the first error ends them all and is raised as it is, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def while_running(work: Coroutine[Any, Any, T], *ends: Coroutine[Any, Any, Never]) -> T:
    """The result of `work`, unless one of `ends` raises before."""
    task = asyncio.ensure_future(work)
    others = [asyncio.ensure_future(end) for end in ends]
    try:
        done, _ = await asyncio.wait([task, *others], return_when=asyncio.FIRST_COMPLETED)
        for other in others:
            if other in done:
                other.result()
        return await task
    finally:
        for pending in (task, *others):
            pending.cancel()
        await asyncio.gather(task, *others, return_exceptions=True)


def log_tail(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    return "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:]) or "  (nothing)"


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _ends_with_parent() -> list[str]:
    """Where Linux offers it, a child is stopped even if the demo is killed and cannot stop it."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM"] if setpriv else []
