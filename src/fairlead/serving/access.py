"""Checks the files by which engines are reached before anything depends on them."""

from __future__ import annotations

from fairlead.config import Config
from fairlead.engines.credentials import check
from fairlead.errors import UserError


def check_access(config: Config) -> None:
    """Raises UserError, with the path of the key, for a CA or an API key that cannot be used."""
    for path, access in config.pool.accesses().items():
        try:
            check(access)
        except UserError as error:
            raise UserError(f"{path}.{error}") from None
