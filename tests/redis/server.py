"""A real Redis server."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from fairlead.processes import free_ports

WITHIN_S = 60.0  # ends a test that would hang


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
        with socket.create_connection(("127.0.0.1", self.port), timeout=WITHIN_S) as connection:
            connection.sendall(f"*{len(words)}\r\n".encode())
            connection.sendall(b"".join(f"${len(word.encode())}\r\n{word}\r\n".encode() for word in words))
            return connection.recv(65536).decode()
