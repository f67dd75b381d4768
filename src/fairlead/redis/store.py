"""What sidecars share over one Redis, under one owner: bindings, moves, drains, load, and what tenants were given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from fairlead.addresses import without_password
from fairlead.admission.admission import Admission
from fairlead.admission.rates import RateLimits
from fairlead.core.endpoint import Endpoint
from fairlead.core.load import Load
from fairlead.core.migration import Planner
from fairlead.core.prefix_index import PrefixIndex
from fairlead.core.sessions import SessionTable
from fairlead.redis import StoreStatistics
from fairlead.redis.drains import SharedDrains
from fairlead.redis.link import RedisLink
from fairlead.redis.load import SharedLoad
from fairlead.redis.moves import SharedMoves
from fairlead.redis.password import StorePassword
from fairlead.redis.sessions import RedisSessions
from fairlead.redis.tenants import SharedTenants


class SharedStore:
    """What `table` binds, `planner` moves and drains and `endpoints()` have in flight is shared; `apply(address, load)`
    gets what others have, `index` what they moved, `rates` and `admission` what they gave to tenants.

    `start` returns at once and nothing here ever makes a request wait; `stop` writes what is pending.
    """

    def __init__(
        self,
        url: str,
        password: StorePassword,
        *,
        table: SessionTable,
        endpoints: Callable[[], Iterable[Endpoint]],
        apply: Callable[[str, Load], None],
        planner: Planner,
        index: PrefixIndex,
        rates: RateLimits,
        admission: Admission,
        clock_s: Callable[[], float],
    ) -> None:
        database = int(urlsplit(without_password(url)).path.strip("/") or 0)
        self.sessions = RedisSessions(table, database, clock_s)
        self.load = SharedLoad(endpoints, apply, database, clock_s)
        self.moves = SharedMoves(table, index, self.sessions.waits, database, clock_s)
        planner.on_move = self.moves.made
        self.drains = SharedDrains(planner.draining, lambda: {e.address for e in endpoints()}, database, clock_s)
        self.tenants = SharedTenants(rates, admission, lambda: self.load.peers.count, database, clock_s)
        self.link = RedisLink(url, password, (self.sessions, self.moves, self.drains, self.load, self.tenants))

    def start(self) -> None:
        self.link.start()

    async def stop(self) -> None:
        await self.link.stop()
        self.load.close()

    def is_decided(self, session: bytes) -> bool:
        return not self.link.up or not self.sessions.waits(session)

    def load_of_peers(self, address: str) -> Load:
        return self.load.peers.of(address)

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
