"""Who may change something over the admin port: whoever sends the token of a file. Without a file nobody may.

The file is read for each action, so a new token counts at once; actions are rare.
"""

from __future__ import annotations

import hmac
import re
from pathlib import Path
from typing import Final

from fairlead.errors import UserError

READ_ONLY: Final = (
    "this admin port only reads: to allow what changes something, put a token into a file, set "
    "listen.admin_token_file to it and restart the sidecar"
)
_LEAST: Final = 16  # characters: none that somebody would guess
_TOKEN: Final = re.compile(rb"[\x21-\x7e]{%d,4096}" % _LEAST)
_BEARER: Final = re.compile(r"bearer +(.+)", re.IGNORECASE)


class AdminToken:
    """Of the file at `path`; None: the port only reads."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path

    def check(self) -> None:
        """Raises UserError, without the token in it, for a file that cannot be used."""
        if self.path is not None:
            read_token(self.path, "listen.admin_token_file")

    def refusal(self, authorization: str) -> tuple[int, str] | None:
        """Status and sentence for an action with this `authorization` header; None: it may go on."""
        if self.path is None:
            return 403, READ_ONLY
        try:
            wanted = read_token(self.path, "listen.admin_token_file")
        except UserError as error:
            return 503, str(error)
        sent = _BEARER.fullmatch(authorization)
        if sent is not None and hmac.compare_digest(sent[1].encode(errors="surrogateescape"), wanted):
            return None
        return 401, "send the token of listen.admin_token_file, as authorization: Bearer TOKEN"


def read_token(path: Path, key: str) -> bytes:
    """The one line of `path`, which `key` names. Raises UserError."""
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise UserError(f"{key}: {path} cannot be read ({error.strerror})") from None
    if not _TOKEN.fullmatch(token):
        advice = f'one line of {_LEAST} or more printable characters: openssl rand -hex 24 > "{path}"'
        raise UserError(f"{key}: {path} holds no token; write {advice}")
    return token
