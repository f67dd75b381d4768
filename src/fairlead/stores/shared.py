"""What sidecars over one Redis share, under one owner: where sessions live, and each other's load."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from fairlead.addresses import without_password
from fairlead.core.peers import Load
from fairlead.core.pool import Endpoint
from fairlead.core.sessions import SessionTable
from fairlead.stores.link import RedisLink
from fairlead.stores.redis_sessions import RedisSessions
from fairlead.stores.shared_load import SharedLoad


class SharedStore:
    """What `table` binds and `endpoints()` have in flight is shared; `apply(address, load)` gets what others have.

    `start` returns at once and nothing here ever makes a request wait; `stop` writes what still waits.
    """

    def __init__(
        self,
        url: str,
        *,
        table: SessionTable,
        endpoints: Callable[[], Iterable[Endpoint]],
        apply: Callable[[str, Load], None],
        clock_s: Callable[[], float],
    ) -> None:
        database = int(urlsplit(without_password(url)).path.strip("/") or 0)
        self.sessions = RedisSessions(table, database, clock_s)
        self.load = SharedLoad(endpoints, apply, database, clock_s)
        self.link = RedisLink(url, (self.sessions, self.load))

    def start(self) -> None:
        self.link.start()

    async def stop(self) -> None:
        await self.link.stop()
        self.load.close()
