"""Load that other sidecars have sent to the endpoints we share: the newest report of each, its sums, and its end.

Each sidecar reports all of its load each time, so a lost message costs nothing once the next one arrives, and a sidecar
that falls silent counts for `expiry_s` and then no more. How reports travel is not here; see `redis.load`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from fairlead.core.load import Load

# Whoever can write to the store must not be able to fill our memory.
MOST_PEERS: Final = 256
MOST_LOADS: Final = 200_000  # of all peers at all endpoints, some 50 MB

NO_LOAD: Final = Load()


class _Peer(msgspec.Struct):
    number: int
    reported_s: float
    loads: Mapping[str, Load]


class Peers:
    """The other sidecars and their load by address. Methods return the sums that they changed, for the endpoints."""

    def __init__(self, expiry_s: float) -> None:
        self._expiry_s = expiry_s
        self._peers: dict[bytes, _Peer] = {}
        self._sums: dict[str, Load] = {}
        self._loads = 0  # of all peers

    @property
    def count(self) -> int:
        return len(self._peers)

    def of(self, address: str) -> Load:
        """The load of all other sidecars at `address`."""
        return self._sums.get(address, NO_LOAD)

    def reported(self, peer: bytes, number: int, loads: Mapping[str, Load], now_s: float) -> dict[str, Load]:
        """`peer` reports that `loads` is all it has in flight; messages are numbered, and an older one is ignored."""
        known = self._peers.get(peer)
        if known is None:
            if len(self._peers) >= MOST_PEERS:
                return {}
            before: Mapping[str, Load] = {}
        elif number <= known.number:
            return {}
        else:
            before = known.loads
        if self._loads - len(before) + len(loads) > MOST_LOADS:
            return {}
        self._peers[peer] = _Peer(number, now_s, loads)
        return self._replace(before, loads)

    def left(self, peer: bytes) -> dict[str, Load]:
        """`peer` is gone and has nothing in flight any more."""
        known = self._peers.pop(peer, None)
        return self._replace(known.loads, {}) if known is not None else {}

    def expire(self, now_s: float) -> dict[str, Load]:
        """Forget those that did not report for `expiry_s`, by a clock that may have jumped either way."""
        changed: dict[str, Load] = {}
        for name in [name for name, peer in self._peers.items() if abs(now_s - peer.reported_s) > self._expiry_s]:
            changed |= self.left(name)
        return changed

    def _replace(self, before: Mapping[str, Load], after: Mapping[str, Load]) -> dict[str, Load]:
        self._loads += len(after) - len(before)
        changed = {}
        for address in before.keys() | after.keys():
            was, now = before.get(address, NO_LOAD), after.get(address, NO_LOAD)
            if was == now:
                continue
            total = self.of(address).minus(was).plus(now)
            changed[address] = total
            if total == NO_LOAD:
                self._sums.pop(address, None)
            else:
                self._sums[address] = total
        return changed
