"""The benchmark's child processes: Python modules that run until their block ends, and what each of them has used."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Final

import aiohttp

_READY_WITHIN_S: Final = 20.0
_STOP_WITHIN_S: Final = 10.0
_LAST_WORDS_BYTES: Final = 2000
_POLL_S: Final = 0.05


class Child:
    """A running `python -m NAME ...`; its output is a pipe, its log a temporary file."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: IO[bytes]) -> None:
        self._name = name
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    async def addresses(self) -> list[str]:
        """The addresses that a child of ours prints when it listens."""
        assert self._process.stdout is not None
        async with asyncio.timeout(_READY_WITHIN_S):
            line = await self._process.stdout.readline()
        if not line:
            raise await self._ended()
        return list(json.loads(line))

    async def answers(self, url: str) -> None:
        """Wait for `url` to answer 200."""
        async with asyncio.timeout(_READY_WITHIN_S), aiohttp.ClientSession() as session:
            while self._process.returncode is None:
                try:
                    async with session.get(url) as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientConnectionError:
                    await asyncio.sleep(_POLL_S)
        raise await self._ended()

    async def output(self) -> bytes:
        """All that it prints, once it has ended by itself."""
        output, _ = await self._process.communicate()
        if self._process.returncode:
            raise await self._ended()
        return output

    async def _ended(self) -> RuntimeError:
        status = await self._process.wait()
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
        return RuntimeError(f"{self._name} ended with status {status}: {self._log.read().decode(errors='replace')}")


@asynccontextmanager
async def child(name: str, *arguments: str, environment: Mapping[str, str] = {}) -> AsyncIterator[Child]:
    """`python -m NAME ARGUMENTS...` from start to stop, with our environment and this."""
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *_ends_with_parent(),
            *(sys.executable, "-m", name, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={**os.environ, **environment},
        )
        try:
            yield Child(name, process, log)
        finally:
            await _stop(process)


def cpu_s(pid: int) -> float:
    """User and system time that the process has used, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(_STOP_WITHIN_S):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _ends_with_parent() -> list[str]:
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "TERM"] if setpriv else []
