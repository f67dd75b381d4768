"""What sidecars share. `open_store` is the way in; the library for Redis is imported by nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fairlead.core.peers import Load
from fairlead.core.pool import Endpoint
from fairlead.core.sessions import SessionTable
from fairlead.errors import UserError

if TYPE_CHECKING:
    from fairlead.stores.shared import SharedStore


def open_store(
    url: str,
    *,
    table: SessionTable,
    endpoints: Callable[[], Iterable[Endpoint]],
    apply: Callable[[str, Load], None],
    clock_s: Callable[[], float],
) -> SharedStore:
    """A `SharedStore`, not yet started. Raises UserError where the library for Redis is not installed."""
    try:
        from fairlead.stores.shared import SharedStore
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        message = 'sessions.store: Redis needs the package redis; install it with: pip install "fairlead[redis]"'
        raise UserError(message) from None
    return SharedStore(url, table=table, endpoints=endpoints, apply=apply, clock_s=clock_s)
