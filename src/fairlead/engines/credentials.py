"""What is read from the files of an `Access`: the key for a request's header, and the TLS that checks the engine.

The files are looked at before each use and read again when they have changed, so that a key or an authority can be
renewed while the sidecar runs. One that cannot be read any more, or is half written, leaves what was read before.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from fairlead.access import Access
from fairlead.errors import UserError

_KEY: Final = re.compile(rb"[\x21-\x7e]{1,4096}")
_Stamp = tuple[int, int, int]
_Read = TypeVar("_Read")


class Credentials:
    """Of one access. Methods raise UserError, without the secret in it, for a file that cannot be used."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._header: tuple[_Stamp, bytes] | None = None
        self._context: tuple[_Stamp, ssl.SSLContext] | None = None

    @property
    def server_name(self) -> str | None:
        return self._access.server_name or None

    def header(self) -> bytes:
        """The header line that carries the key; empty without one."""
        if not self._access.api_key_file:
            return b""
        self._header = _again(self._header, Path(self._access.api_key_file), "api_key_file", _header)
        return self._header[1]

    def context(self) -> ssl.SSLContext | None:
        """None without TLS."""
        if not self._access.ca:
            return None
        self._context = _again(self._context, Path(self._access.ca), "tls.ca", _context)
        return self._context[1]


@cache
def credentials_of(access: Access) -> Credentials:
    """The same object for the same access: there are as many as the configuration names."""
    return Credentials(access)


def check(access: Access) -> None:
    """Raises UserError if a file of it cannot be used."""
    found = credentials_of(access)
    found.header()
    found.context()


def _again(
    known: tuple[_Stamp, _Read] | None, path: Path, key: str, read: Callable[[Path], _Read]
) -> tuple[_Stamp, _Read]:
    """What `path` holds: `known`, unless the file has changed since."""
    try:
        stat = path.stat()
        stamp = stat.st_mtime_ns, stat.st_size, stat.st_ino
        return known if known is not None and known[0] == stamp else (stamp, read(path))
    except ValueError as error:
        reason = str(error)
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    if known is not None:
        return known
    raise UserError(f"{key}: {path} {reason}")


def _header(path: Path) -> bytes:
    key = path.read_bytes().strip()
    if not _KEY.fullmatch(key):
        raise ValueError("holds no key; it must be one line of printable ASCII without spaces")
    return b"authorization: Bearer " + key + b"\r\n"


def _context(path: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=path)
    except ssl.SSLError:  # an OSError, too
        raise ValueError("holds no certificate in PEM") from None
