"""A real Redis server, and sidecars that share it, as far as a store needs one."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from fairlead.core.facts import session_key
from fairlead.core.peers import NO_LOAD, Load
from fairlead.core.pool import Endpoint
from fairlead.core.sessions import SessionTable
from fairlead.stores import open_store
from tests.gateway.world import free_ports

WITHIN_S = 15.0


def key(name: object) -> bytes:
    return session_key(str(name).encode())


class RedisServer:
    """A server of its own, on a free port. It keeps nothing on disk, so a restart loses everything."""

    def __init__(self, folder: Path, password: str = "") -> None:
        self._folder, self._password = folder, password
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_ports(1)[0]
        self.url = f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"

    def start(self) -> None:
        binary = shutil.which("redis-server")
        assert binary, "the tests of the shared store need redis-server; install Debian's package redis-server"
        command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        command += ["--dir", str(self._folder), "--requirepass", self._password]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + WITHIN_S
        while not self._listens():
            assert self._process.poll() is None, (self._folder / "redis.log").read_text()
            assert time.monotonic() < deadline, "redis-server does not listen"
            time.sleep(0.01)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def ask(self, *words: str) -> str:
        """The server's raw answer to a command that needs no password."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(f"*{len(words)}\r\n".encode())
            connection.sendall(b"".join(f"${len(word.encode())}\r\n{word}\r\n".encode() for word in words))
            return connection.recv(65536).decode()


class Sidecar:
    """Two endpoints, a session table and a store."""

    def __init__(self, url: str, ttl_s: int = 3600, max_entries: int = 100_000) -> None:
        self.table = SessionTable(ttl_s=ttl_s, max_entries=max_entries)
        self.endpoints = {address: Endpoint(address, "m") for address in ("a:1", "b:1")}
        self.others: dict[str, Load] = {}
        self.store = open_store(
            url,
            table=self.table,
            endpoints=self.endpoints.values,
            apply=self.others.__setitem__,
            clock_s=time.perf_counter,
        )
        self.store.start()

    def host(self, name: object) -> str | None:
        return self.table.host(key(name), time.perf_counter())

    def bind(self, name: object, address: str) -> None:
        self.table.bind(key(name), address, time.perf_counter())

    def turn(self, name: object, choice: str) -> str:
        """What the router does with a request of session `name`, where the policy would choose `choice`."""
        host = self.host(name)
        if host is None:
            self.bind(name, choice)
        return host or choice

    def load_of_others(self, address: str) -> Load:
        return self.others.get(address, NO_LOAD)

    def up(self) -> bool:
        return self.store.link.up

    def idle(self) -> bool:
        return self.up() and not self.store.sessions.pending


async def until(condition: Callable[[], object], what: str) -> float:
    """Wait for what other processes bring about; how long it took, in seconds."""
    began = time.perf_counter()
    while not condition():
        assert time.perf_counter() < began + WITHIN_S, f"not so within {WITHIN_S:g} s: {what}"
        await asyncio.sleep(0.001)
    return time.perf_counter() - began
