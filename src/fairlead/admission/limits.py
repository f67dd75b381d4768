"""How much may wait: requests, bytes and expected time, of the sidecar, of a band and of one tenant in it."""

from __future__ import annotations

from math import inf

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """Infinite: no limit."""

    requests: float = inf
    bytes: float = inf
    wait_ms: float = inf  # that a new request should expect

    def reached(self, requests: int, size_bytes: int) -> bool:
        return requests >= self.requests or size_bytes > self.bytes


NO_LIMITS = Limits()


class BandRules(msgspec.Struct, frozen=True):
    """What holds for the requests of one level."""

    name: str = "default"
    limits: Limits = NO_LIMITS
    of_tenant: Limits = NO_LIMITS
    share: float = 1.0  # of what fills an endpoint: what is above it is kept for higher levels
    longest_wait_s: float = 30.0


class QueueRules(msgspec.Struct, frozen=True):
    """`bands` by level; another level has the rules of 0."""

    limits: Limits = NO_LIMITS
    bands: dict[int, BandRules] = {}
    aging_s: float = 20.0  # a request that has waited longer goes before others now and then, whatever its level
    aged_share: float = 0.1  # of the engine time given out, while such requests wait
    most_tenants: int = 256  # for each band: those beyond share one account

    def band(self, level: int) -> BandRules:
        return self.bands.get(level) or self.bands.get(0) or _DEFAULT


_DEFAULT = BandRules()
