"""The password of the shared store: from a file or the environment, so that the configuration holds no secret."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from fairlead.errors import UserError

VARIABLE: Final = "FAIRLEAD_STORE_PASSWORD"
_MOST_BYTES: Final = 4096


class StorePassword:
    """Of the file at `path`, or where that is None of the environment. Read for each connection: a new one counts."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    def read(self) -> str | None:
        """None: that of the URL, if it has one. Raises UserError, without the password in it, for an unusable file."""
        if self._path is None:
            return os.environ.get(VARIABLE) or None
        try:
            password = self._path.read_bytes()[: _MOST_BYTES + 1].strip()
        except OSError as error:
            raise _unusable(f"{self._path} cannot be read ({error.strerror})") from None
        if not 0 < len(password) <= _MOST_BYTES or len(password.splitlines()) > 1:
            raise _unusable(f"{self._path} holds no password; write it as one line")
        try:
            return password.decode()
        except UnicodeDecodeError:
            raise _unusable(f"{self._path} is not UTF-8") from None


def _unusable(reason: str) -> UserError:
    return UserError(f"sessions.store_password_file: {reason}")
