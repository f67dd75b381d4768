"""What sidecars share over one Redis, under one owner: bindings, moves, drains, load, and what tenants were given."""

from __future__ import annotations

from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from fairlead.addresses import without_password
from fairlead.admission.admission import Admission
from fairlead.admission.rates import RateLimits
from fairlead.core.load import Load
from fairlead.core.router import Router
from fairlead.redis import StoreStatistics
from fairlead.redis.drains import SharedDrains
from fairlead.redis.link import RedisLink
from fairlead.redis.load import SharedLoad
from fairlead.redis.moves import SharedMoves
from fairlead.redis.password import StorePassword
from fairlead.redis.sessions import RedisSessions
from fairlead.redis.tenants import SharedTenants


class SharedStore:
    """What `router` binds, moves, drains and has in flight is shared, and what its index gained by moves;
    `apply(address, load)` gets what others have in flight, `rates` and `admission` what they gave to tenants.

    `start` returns at once and nothing here ever makes a request wait; `stop` writes what is pending.
    """

    def __init__(
        self,
        url: str,
        password: StorePassword,
        router: Router,
        *,
        apply: Callable[[str, Load], None],
        rates: RateLimits,
        admission: Admission,
        clock_s: Callable[[], float],
    ) -> None:
        database = int(urlsplit(without_password(url)).path.strip("/") or 0)
        planner = router.planner

        def addresses() -> set[str]:
            return set(router.pool.by_address)

        self.sessions = RedisSessions(router.sessions, database, clock_s)
        self.load = SharedLoad(lambda: router.pool.endpoints, apply, database, clock_s)
        self.moves = SharedMoves(router.sessions, router.index, self.sessions.waits, database, clock_s)
        planner.on_move = self.moves.made
        self.drains = SharedDrains(planner.draining, addresses, database, clock_s)
        self.tenants = SharedTenants(rates, admission, lambda: self.load.peers.count, database, clock_s)
        self.link = RedisLink(url, password, (self.sessions, self.moves, self.drains, self.load, self.tenants))

    def start(self) -> None:
        self.drains.start()
        self.link.start()

    async def stop(self) -> None:
        await self.link.stop()
        self.load.close()

    def is_decided(self, session: bytes) -> bool:
        return not self.link.up or not self.sessions.waits(session)

    def load_of_peers(self, address: str) -> Load:
        return self.load.peers.of(address)

    def draining(self) -> Collection[str]:
        return self.drains.shared

    def statistics(self) -> StoreStatistics:
        sessions, load = self.sessions, self.load
        return StoreStatistics(
            up=self.link.up,
            peers=load.peers.count,
            pending=sessions.pending,
            outcomes={
                "failures": self.link.failures,
                "bindings_written": sessions.written,
                "bindings_conflicting": sessions.conflicts,
                "bindings_dropped": sessions.dropped,
                "bindings_learned": sessions.learned,
                "malformed": sessions.malformed
                + load.malformed
                + self.moves.malformed
                + self.drains.malformed
                + self.tenants.malformed,
                "loads_sent": load.sent,
                "loads_received": load.received_loads,
            },
        )
