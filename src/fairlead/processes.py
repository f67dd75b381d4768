"""Child processes: each has a name, a log and an owner.

A child ends with the block that started it, and so does all that it started itself. Where `setpriv` is installed, it is
stopped even if its parent is killed and cannot stop it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Never, Self

import aiohttp

from fairlead.tasks import while_running

_READY_WITHIN_S: Final = 30.0  # several Python processes start at once, on a laptop perhaps alongside a build
_STOP_WITHIN_S: Final = 5.0
_ANSWER_WITHIN_S: Final = 2.0
_POLL_S: Final = 0.02
_TAIL_LINES: Final = 12
_TAIL_BYTES: Final = 64 * 1024  # a log may have grown to gigabytes
_FIRST_PORT: Final = 10_000
_REMEMBERED: Final = 1_000  # ports given out, for whoever listens late
_chance: Final = random.SystemRandom()  # a seeded one would choose alike in two processes
_given_out: Final[deque[int]] = deque(maxlen=_REMEMBERED)
_RESERVATIONS: Final = Path(tempfile.gettempdir()) / f"fairlead-ports-{os.getuid()}"  # never written: a byte a port


class ChildError(Exception):
    """A child ended by itself or was not ready in time; the text ends with the last lines of its log."""


class Assembly(ABC):
    """Parts that are started in order; what has started is stopped, the last first, when the block or a start ends."""

    _stack: AsyncExitStack

    @abstractmethod
    async def _start(self, stack: AsyncExitStack) -> None:
        """Start the parts, and enter each into `stack`."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()


class Child:
    """`async with Child(...) as child:` runs `command` until the block ends.

    The log goes to `log_path`, or to a temporary file that ends with the block. Standard output is part of it, unless
    `has_output`: then `line` and `output` return what the child prints. `environment` is added to this process's own.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_path: Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        has_output: bool = False,
        stop_within_s: float = _STOP_WITHIN_S,
    ) -> None:
        self._name = name
        self._command = tuple(command)
        self._log_path = log_path
        self._environment = {**os.environ, **(environment or {})}
        self._has_output = has_output
        self._stop_within_s = stop_within_s
        self._log: IO[bytes] | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        return self._started.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def until_ready(self, url: str, within_s: float = _READY_WITHIN_S) -> None:
        """Wait for `url` to answer 200. Raises ChildError when the child ends before, or `within_s` have passed."""
        try:
            async with asyncio.timeout(within_s):
                await while_running(_answers(url), self.ended())
        except TimeoutError:
            raise self._error(f"was not ready within {within_s:g} s") from None

    async def wait(self) -> int:
        """The exit status, once the child has ended by itself or by a signal."""
        return await self._started.wait()

    async def ended(self) -> Never:
        """Wait for the child to end, and raise: for one that should never end by itself."""
        raise self._error(f"ended with status {await self.wait()}")

    async def line(self, within_s: float = _READY_WITHIN_S) -> bytes:
        """The next line that it prints. Raises ChildError when it ends without, or prints none `within_s`."""
        assert self._started.stdout is not None, "the output goes to the log; ask for it with has_output"
        try:
            async with asyncio.timeout(within_s):
                found = await self._started.stdout.readline()
        except TimeoutError:
            raise self._error(f"printed nothing within {within_s:g} s") from None
        return found or await self.ended()

    async def output(self) -> bytes:
        """All that it prints, once it has ended by itself. Raises ChildError for a status other than 0."""
        assert self._started.stdout is not None, "the output goes to the log; ask for it with has_output"
        output, _ = await self._started.communicate()
        return output if self._started.returncode == 0 else await self.ended()

    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        """The last lines of the log."""
        if self._log is None or self._log.closed:
            return ""
        handle = self._log.fileno()  # read by position: to seek would move where the child writes next
        tail = os.pread(handle, _TAIL_BYTES, max(0, os.fstat(handle).st_size - _TAIL_BYTES))
        return "\n".join(tail.decode(errors="replace").splitlines()[-lines:])

    def kill(self) -> None:
        """End it and its own children at once, as a machine that fails would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def __aenter__(self) -> Self:
        with ExitStack() as stack:
            self._log = stack.enter_context(_new_log(self._log_path))
            self._process = await asyncio.create_subprocess_exec(
                *_ends_with_parent(),
                *self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if self._has_output else self._log,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C is for the parent, which stops its children in order
            )
            stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._started
        try:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._stop_within_s):
                        await process.wait()
        finally:
            self.kill()  # what is left of its group, even where it has ended itself
            await process.wait()
            if self._log is not None:
                self._log.close()

    @property
    def _started(self) -> asyncio.subprocess.Process:
        assert self._process is not None, f"{self._name} was not started"
        return self._process

    def _error(self, what: str) -> ChildError:
        tail = "\n".join(f"  {line}" for line in self.log_tail().splitlines())
        return ChildError(f"{self._name} {what}; its log ends:\n{tail or '  (empty)'}")


def python_module(name: str, *arguments: str) -> tuple[str, ...]:
    """The command of `python -m NAME ARGUMENTS...`, with the interpreter that runs us."""
    return (sys.executable, "-m", name, *arguments)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens on now, all different, and from the last `_REMEMBERED` too.

    No other process of this user's that asks here gets one of them while this one lives. They are below the range that
    the kernel takes ports of outgoing connections from: one of that range may be gone, or be given out again, before
    the process that it is meant for listens on it.
    """
    found: list[int] = []
    while len(found) < count:
        port = _chance.randrange(_FIRST_PORT, _first_ephemeral_port())
        if port not in _given_out and _reserve(port) and _is_free(port):
            _given_out.append(port)
            found.append(port)
    return found


@functools.cache
def _reservations() -> int:
    """The file whose bytes are locked. It stays open: to close any descriptor of it would give up every lock."""
    return os.open(_RESERVATIONS, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _reserve(port: int) -> bool:
    """Reserve the port for this process: a lock on its byte, which ends with the process however it ends."""
    try:
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except BlockingIOError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as each:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else a connection that ended still holds it
        try:
            each.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _first_ephemeral_port() -> int:
    with contextlib.suppress(OSError, ValueError):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        if first >= _FIRST_PORT + 10 * _REMEMBERED:
            return first
    return 32768  # Linux's default; elsewhere it is higher


def _new_log(path: Path | None) -> IO[bytes]:
    return tempfile.TemporaryFile() if path is None else path.open("w+b")


async def _answers(url: str) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_WITHIN_S)) as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(_POLL_S)


def _ends_with_parent() -> tuple[str, ...]:
    setpriv = shutil.which("setpriv")
    return (setpriv, "--pdeathsig", "TERM") if setpriv else ()
