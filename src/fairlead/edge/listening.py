"""Listening sockets of an address: `host:port`, `[v6]:port` or `unix:/path`."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path
from typing import Final

from fairlead.addresses import host_and_port

_BACKLOG: Final = 512
_UNIX: Final = "unix:"


class Listeners:
    """The sockets of one address: bound, listening, not blocking."""

    def __init__(self, address: str) -> None:
        """Raises OSError when the address is taken or cannot be had."""
        self._file: tuple[Path, int] | None = None  # of a Unix socket, with its inode
        try:
            if address.startswith(_UNIX):
                path = Path(address.removeprefix(_UNIX))
                self.sockets = [_unix(path)]
                self._file = path, path.stat().st_ino
            else:
                self.sockets = _tcp(address)
        except OSError as error:
            raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from error

    @property
    def port(self) -> int:
        """1 for a Unix socket."""
        return 1 if self._file is not None else int(self.sockets[0].getsockname()[1])

    def close(self) -> None:
        """A Unix socket's file goes, too, unless another server has put its own there."""
        for each in self.sockets:
            each.close()
        if self._file is not None:
            path, inode = self._file
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == inode:
                    path.unlink()


def _tcp(address: str) -> list[socket.socket]:
    host, port = (address.rpartition(":")[0].strip("[]"), 0) if address.endswith(":0") else host_and_port(address)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, where in dict.fromkeys(found):
            each = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(each)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
            each.bind((where[0], sockets[0].getsockname()[1] if len(sockets) > 1 else port, *where[2:]))
            each.listen(_BACKLOG)
            each.setblocking(False)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


def _unix(path: Path) -> socket.socket:
    each = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_served(path):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()  # left by a server that was killed
        each.bind(str(path))
        each.listen(_BACKLOG)
        each.setblocking(False)
    except OSError:
        each.close()
        raise
    return each


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # its queue is full: somebody listens
        except OSError:
            return False
    return True
