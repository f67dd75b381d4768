"""Which clients may ask: a file of hashed keys. The file is read again when it changes, off the request path.

A key is looked up by its SHA-256, and what is found is compared in constant time: how long it takes says nothing of a
key that the file has.
"""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from pathlib import Path
from typing import Final

from fairlead.api.headers import API_KEY, AUTHORIZATION
from fairlead.errors import UserError
from fairlead.extproc.headers import Headers
from fairlead.files import Stamp, stamp_of

_BEARER: Final = re.compile(rb"bearer +(.+)", re.IGNORECASE)
_OF_NOTHING: Final = sha256(b"").digest()
_LINE: Final = re.compile(r"(\S+)\s+([0-9a-fA-F]{64})")


class ClientKeys:
    """Of the file at `path`; None: everybody may ask."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._digests: dict[bytes, bytes] = {}
        self._stamp: Stamp | None = None

    def use(self, path: Path | None) -> None:
        """From now on. Raises UserError, and then nothing has changed."""
        stamp, digests = (None, {}) if path is None else (stamp_of(path), _read(path))
        self.path, self._digests, self._stamp = path, digests, stamp

    def refresh(self) -> bool:
        """Read the file again if it has changed; whether it was. Raises UserError, and then the last keys count."""
        if self.path is None or (stamp := stamp_of(self.path)) == self._stamp:
            return False
        self._stamp = stamp  # a mistake is said once
        self._digests = _read(self.path)
        return True

    def allow(self, headers: Headers) -> bool:
        """Whether a request with these headers shows a known key."""
        sent = _BEARER.fullmatch(headers.get(AUTHORIZATION, b""))
        key = sent[1] if sent is not None else headers.get(API_KEY, b"")
        digest = sha256(key).digest()
        return hmac.compare_digest(self._digests.get(digest, b""), digest)


def _read(path: Path) -> dict[bytes, bytes]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"clients.keys: {path} cannot be read ({reason})") from None
    digests = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        found = _LINE.fullmatch(text)
        if text and found is None:
            message = "write a name and the SHA-256 of the key, as 64 hexadecimal digits"
            raise UserError(f"clients.keys: {path}:{number}: {message}")
        if found is not None:
            digest = bytes.fromhex(found[2])
            if digest == _OF_NOTHING:  # `printf %s "$key"` in a shell that has no `key`
                message = "this is the SHA-256 of no key at all, which every request without one shows; hash the key"
                raise UserError(f"clients.keys: {path}:{number}: {message}")
            digests[digest] = digest
    return digests
