"""Long bodies are read in processes of their own, and the event loop goes on with other requests meanwhile.

A parse of 20 MB takes 10 to 100 ms in which no other thread of Python runs, as JSON, hashes and counts all hold the
interpreter's lock. Here only the start of a process holds it; the bytes are copied by the kernel.
"""

from __future__ import annotations

import asyncio
import os
import queue
import select
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Final

import msgspec

from fairlead.api.prompt import Malformed
from fairlead.edge.grpc.reading import Part
from fairlead.extproc.body import Body, pieces_of
from fairlead.extproc.body_worker import LENGTHS, Answer
from fairlead.extproc.reading import Question, Read

MOST_READERS: Final = 4
MOST_READ_S: Final = 10.0  # a reader that takes longer hangs; the slowest body of 32 MB takes some 0.5 s
_ATTEMPTS: Final = 2
_PIPE_BYTES: Final = 1 << 20
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(Answer).decode


class ReaderLostError(Exception):
    """The reading process ended, or hung and was ended, each time that it was given this body."""


class BodyReader:
    """Owns the processes. Each is started when it is first needed, kept, and replaced when it dies."""

    def __init__(self, readers: int | None = None) -> None:
        if readers is None:
            readers = min(MOST_READERS, max(1, len(os.sched_getaffinity(0)) - 1))
        self.restarts = 0  # of processes that died
        self._idle: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
        for _ in range(readers):
            self._idle.put(None)
        self._threads = ThreadPoolExecutor(readers, thread_name_prefix="body-reader")

    def start(self) -> None:
        """Start a process now, so that the first long body need not wait for it."""
        self._threads.submit(self._ask, b"{}", Question("/", b"", b""))

    async def read(self, body: Body, question: Question) -> Read | Malformed:
        """Raises ReaderLostError. A caller that is cancelled leaves the process to finish."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, body, question)

    def stop(self) -> None:
        """End the processes. Bodies that still wait are given up."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        with suppress(queue.Empty):
            while True:
                process = self._idle.get_nowait()
                if process is not None:
                    process.end()

    def _ask(self, body: Body, question: Question) -> Read | Malformed:
        process = self._idle.get()
        try:
            for _ in range(_ATTEMPTS):
                if process is None:
                    process = _Process()
                try:
                    answer = process.ask(body, question)
                except (OSError, EOFError, TimeoutError, msgspec.DecodeError):
                    self.restarts += 1
                    process.end()
                    process = None
                    continue
                read = answer.malformed or answer.read
                assert read is not None
                return read
        finally:
            self._idle.put(process)
        raise ReaderLostError


class _Process:
    """One reading process, used by one thread at a time."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "fairlead.extproc.body_worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._stdin, self._stdout = self._child.stdin.fileno(), self._child.stdout.fileno()
        _widen(self._child.stdin)
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)

    def ask(self, body: Body, question: Question) -> Answer:
        """Raises OSError, EOFError or TimeoutError where no answer comes."""
        until_s = time.monotonic() + MOST_READ_S
        head = _encode(question)
        self._write(LENGTHS.pack(len(head), len(body)) + head, until_s)
        for piece in pieces_of(body):
            self._write(piece, until_s)
        length, _ = LENGTHS.unpack(self._read(LENGTHS.size, until_s))
        return _decode(self._read(length, until_s))

    def end(self) -> None:
        self._child.kill()
        self._child.communicate()

    def _write(self, data: Part, until_s: float) -> None:
        view = memoryview(data)
        while view:
            _wait(self._stdin, select.POLLOUT, until_s)
            with suppress(BlockingIOError):
                view = view[os.write(self._stdin, view) :]

    def _read(self, length: int, until_s: float) -> bytes:
        parts: list[bytes] = []
        while length:
            _wait(self._stdout, select.POLLIN, until_s)
            with suppress(BlockingIOError):
                part = os.read(self._stdout, min(length, _PIPE_BYTES))
                if not part:
                    raise EOFError
                parts.append(part)
                length -= len(part)
        return b"".join(parts)


def _wait(descriptor: int, event: int, until_s: float) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, until_s - time.monotonic()) * 1e3):
        raise TimeoutError


def _widen(pipe: IO[bytes]) -> None:
    """Fewer reads and writes for a long body. Linux allows up to 1 MiB; elsewhere the pipe stays as it is."""
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
