"""What sidecars share. `open_store` is the way in; the library for Redis is imported by nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlead.errors import UserError

if TYPE_CHECKING:
    from fairlead.stores.shared import SharedStore


def open_store(url: str, **parts: Any) -> SharedStore:
    """A store at `url`, not yet started; `parts` as `SharedStore` takes them. Raises UserError without the library."""
    try:
        from fairlead.stores.shared import SharedStore
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        message = 'sessions.store: Redis needs the package redis; install it with: pip install "fairlead[redis]"'
        raise UserError(message) from None
    return SharedStore(url, **parts)
