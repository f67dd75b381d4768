"""What sidecars share. `open_store` is the entry point; the Redis library is imported only behind it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from fairlead.admission.admission import Admission
from fairlead.admission.rates import RateLimits
from fairlead.core.load import Load
from fairlead.core.peers import NO_LOAD
from fairlead.core.router import Router
from fairlead.errors import UserError, how_to_install
from fairlead.redis.password import StorePassword

if TYPE_CHECKING:  # the library is an extra
    from fairlead.redis.store import SharedStore

MEMORY: Final = "memory"  # the value of `sessions.store` without a store

Outcome = Literal[
    "failures",
    "bindings_written",
    "bindings_conflicting",
    "bindings_dropped",
    "bindings_learned",
    "malformed",
    "loads_sent",
    "loads_received",
]


class StoreStatistics(NamedTuple):
    """For metrics."""

    up: bool
    peers: int  # other sidecars
    pending: int  # bindings not yet written to the store
    outcomes: Mapping[Outcome, int]  # since the start


class Store(Protocol):
    """What a sidecar needs of the store that it shares with others."""

    def start(self) -> None:
        """Connect in the background; no request waits for it."""

    async def stop(self) -> None:
        """Write what is pending, then disconnect."""

    def is_decided(self, session: bytes) -> bool:
        """Whether the store has confirmed the session's last binding; while it is unreachable, our own counts."""

    def load_of_peers(self, address: str) -> Load:
        """What the other sidecars have in flight at one endpoint."""

    def draining(self) -> Collection[str]:
        """Addresses of endpoints that drain, as the store says, in the pool or not."""

    def statistics(self) -> StoreStatistics | None:
        """None if there is no store."""


class NoStore:
    """No store: this sidecar's own memory is all there is."""

    def start(self) -> None:
        """Nothing to connect to."""

    async def stop(self) -> None:
        """Nothing is pending."""

    def is_decided(self, session: bytes) -> bool:  # noqa: ARG002
        return True

    def load_of_peers(self, address: str) -> Load:  # noqa: ARG002
        return NO_LOAD

    def draining(self) -> Collection[str]:
        return ()

    def statistics(self) -> StoreStatistics | None:
        return None


def open_store(
    url: str,
    password: StorePassword,
    router: Router,
    *,
    apply: Callable[[str, Load], None],
    rates: RateLimits,
    admission: Admission,
    clock_s: Callable[[], float],
) -> Store:
    """The store at `url`, not yet started. Raises UserError where the library for Redis is not installed."""
    if url == MEMORY:
        return NoStore()
    make = _shared_store()
    return make(url, password, router, apply=apply, rates=rates, admission=admission, clock_s=clock_s)


def require_library() -> None:
    """Raises UserError where the library for Redis is not installed."""
    _shared_store()


def _shared_store() -> type[SharedStore]:
    try:
        from fairlead.redis.store import SharedStore
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        message = f"sessions.store: Redis needs the package redis; {how_to_install('redis')}"
        raise UserError(message) from None
    return SharedStore
