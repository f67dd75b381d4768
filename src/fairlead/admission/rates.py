"""Rate limits: what each tenant may take in a minute, in tokens and in milliseconds of engine time.

Each tenant has a bucket of one minute's worth, which fills steadily. A request pays what it is expected to take; one
that is larger than a whole bucket needs a full one, and leaves a debt. A bucket is forgotten only once it is full
again, so forgetting gives nobody a second burst. While so many are not full that there is no room for another, tenants
that come new share one bucket as if they were one tenant.

Several sidecars over one Redis pay from one bucket: each applies what the others granted, a moment later
(`redis.tenants`). Until they are connected, and when they are no more, each has its part of every limit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import islice
from math import inf
from typing import Final, Literal, NamedTuple

import msgspec

Unit = Literal["tokens", "engine_ms"]
UNITS: Final[tuple[Unit, ...]] = ("tokens", "engine_ms")
MOST_TENANTS: Final = 10_000  # some 400 bytes each; those that the rules name are not among them
OTHERS: Final = b"\0others"  # no header value has a NUL
_MINUTE_S: Final = 60.0
_NOTHING: Final = 1e-6  # floats drift
_LOOKED_AT: Final = 4  # of the buckets not used for longest, for each new one


class Rate(msgspec.Struct, frozen=True):
    """A minute. Infinite: not limited."""

    tokens: float = inf  # of prompts, cached ones too, and answers
    engine_ms: float = inf

    def of(self, unit: Unit) -> float:
        return self.tokens if unit == "tokens" else self.engine_ms


class RateRules(msgspec.Struct, frozen=True):
    of_tenants: Mapping[bytes, Rate] = {}
    others: Rate | None = None  # of every tenant that is not named; None: unlimited
    sidecars: int = 1  # that share the traffic: without a store each has its part
    most_tenants: int = MOST_TENANTS


class Level(NamedTuple):
    """What is left of one limit, for the client."""

    unit: Unit
    limit: float
    left: float  # negative: a debt
    full_in_s: float


class Charge(msgspec.Struct, frozen=True):
    """What a request was expected to take, and has paid."""

    bucket: bytes  # its key
    tokens: float
    engine_ms: float


class Denied(msgspec.Struct, frozen=True):
    unit: Unit  # of the limit that is reached; of two, the one that takes longer
    retry_in_s: float
    levels: tuple[Level, ...]


class _Bucket:
    __slots__ = ("at_s", "left", "rate")

    def __init__(self, rate: Rate, share: float, now_s: float) -> None:
        self.rate = rate
        self.left: dict[Unit, float] = {unit: rate.of(unit) * share for unit in UNITS if rate.of(unit) < inf}
        self.at_s = now_s

    def fill(self, share: float, now_s: float) -> None:
        minutes = max(0.0, now_s - self.at_s) / _MINUTE_S
        self.at_s = max(self.at_s, now_s)  # who shows all of them comes to some a moment later than it says
        for unit, left in self.left.items():
            limit = self.rate.of(unit) * share
            self.left[unit] = min(limit, left + limit * minutes)

    def is_full(self, share: float) -> bool:
        return all(left >= self.rate.of(unit) * share for unit, left in self.left.items())

    def pay(self, tokens: float, engine_ms: float) -> None:
        """Negative: it is given back. A bucket above its limit loses the excess when it is filled next."""
        for unit in self.left:
            self.left[unit] -= tokens if unit == "tokens" else engine_ms

    def levels(self, share: float) -> tuple[Level, ...]:
        found = []
        for unit, left in self.left.items():
            limit = self.rate.of(unit)
            found.append(Level(unit, limit, left, max(0.0, limit * share - left) / (limit * share) * _MINUTE_S))
        return tuple(found)


class RateLimits:
    """Off without rules. Times are of the caller's clock; every call costs the same however many tenants there are."""

    def __init__(self) -> None:
        self.rules: RateRules | None = None
        self.denied: dict[Unit, int] = dict.fromkeys(UNITS, 0)  # requests, by the limit that was reached
        self.folded = 0  # requests of tenants that shared a bucket, as there was no room for another
        self.is_shared = False  # with other sidecars: what is granted here is kept for them in `unsent`
        self.unsent: dict[bytes, tuple[float, float]] = {}  # tokens and engine ms by bucket
        self._parts: int | None = None  # None: as many as the rules say
        self._kept: dict[bytes, _Bucket] = {}  # of tenants that the rules name, and of `OTHERS`: never forgotten
        self._buckets: OrderedDict[bytes, _Bucket] = OrderedDict()  # by last use

    @property
    def is_on(self) -> bool:
        return self.rules is not None

    @property
    def tenants(self) -> int:
        return len(self._kept) + len(self._buckets)

    @property
    def share(self) -> float:
        """Of each limit, that is this sidecar's."""
        return 1.0 / (self._parts or (1 if self.rules is None else self.rules.sidecars))

    def use(self, rules: RateRules | None, now_s: float) -> None:
        """Put these in force. A bucket stays as full as it was."""
        if rules == self.rules:
            return
        before = {**self._kept, **self._buckets}
        for bucket in before.values():
            bucket.fill(self.share, now_s)
        old_share, self.rules = self.share, rules
        self._kept, self._buckets = {}, OrderedDict()
        if rules is None:
            self.unsent.clear()
            return
        for key, old in before.items():
            rate = self._rate(key)
            if rate is None:
                continue
            new = _Bucket(rate, self.share, now_s)
            for unit in new.left:
                if unit in old.left:
                    new.left[unit] *= old.left[unit] / (old.rate.of(unit) * old_share)
            (self._kept if key in rules.of_tenants or key == OTHERS else self._buckets)[key] = new

    def divide(self, parts: int | None, now_s: float) -> None:
        """From now on this sidecar has one of so many parts of every limit, and of what is left of it.

        Where its part grows, what is left does not: the others may have used theirs.
        """
        for bucket in self._all():
            bucket.fill(self.share, now_s)
        before, self._parts = self.share, parts
        factor = min(1.0, self.share / before)
        for bucket in self._all():
            for unit in bucket.left:
                bucket.left[unit] *= factor

    def take(
        self, tenant: bytes, tokens: float, engine_ms: float, now_s: float, *, always: bool = False
    ) -> Charge | Denied | None:
        """Pay for a request. None: `tenant` has no limit. `always`: it is granted, into debt if need be."""
        found = self._bucket(tenant, now_s)
        if found is None:
            return None
        key, bucket = found
        if not always and (denied := self._denied(bucket, tokens, engine_ms)) is not None:
            self.denied[denied.unit] += 1
            return denied
        self.folded += key == OTHERS
        self._pay(key, bucket, tokens, engine_ms)
        return Charge(key, tokens, engine_ms)

    def settle(self, charge: Charge, tokens: float, engine_ms: float, now_s: float) -> Charge:
        """It took this much instead: the difference is paid, or given back."""
        found = self._bucket(charge.bucket, now_s)
        if found is not None and (tokens, engine_ms) != (charge.tokens, charge.engine_ms):
            self._pay(*found, tokens - charge.tokens, engine_ms - charge.engine_ms)
        return Charge(charge.bucket, tokens, engine_ms)

    def levels(self, charge: Charge, now_s: float) -> tuple[Level, ...]:
        found = self._bucket(charge.bucket, now_s)
        return () if found is None else found[1].levels(self.share)

    def others_took(self, tenant: bytes, tokens: float, engine_ms: float, now_s: float) -> None:
        """Another sidecar granted this."""
        found = self._bucket(tenant, now_s)
        if found is not None:
            found[1].pay(tokens, engine_ms)

    def all_levels(self, now_s: float) -> Iterator[tuple[bytes, tuple[Level, ...]]]:
        """Of each tenant that is remembered, for people; requests may be granted while this is read."""
        for key, bucket in [*self._kept.items(), *self._buckets.items()]:
            bucket.fill(self.share, now_s)
            yield key, bucket.levels(self.share)

    def _pay(self, key: bytes, bucket: _Bucket, tokens: float, engine_ms: float) -> None:
        bucket.pay(tokens, engine_ms)
        if self.is_shared:
            before_tokens, before_ms = self.unsent.get(key, (0.0, 0.0))
            self.unsent[key] = before_tokens + tokens, before_ms + engine_ms

    def _denied(self, bucket: _Bucket, tokens: float, engine_ms: float) -> Denied | None:
        worst: tuple[float, Unit] | None = None
        for unit, left in bucket.left.items():
            limit = bucket.rate.of(unit) * self.share
            lacks = min(tokens if unit == "tokens" else engine_ms, limit) - left
            if lacks > _NOTHING and (worst is None or lacks / limit > worst[0]):
                worst = lacks / limit, unit
        return None if worst is None else Denied(worst[1], worst[0] * _MINUTE_S, bucket.levels(self.share))

    def _bucket(self, tenant: bytes, now_s: float) -> tuple[bytes, _Bucket] | None:
        """Filled up to now. None: it has no limit."""
        rules = self.rules
        if rules is None:
            return None
        bucket = self._kept.get(tenant)
        if bucket is None:
            rate = self._rate(tenant)
            if rate is None:
                return None
            buckets = self._kept if tenant in rules.of_tenants else self._buckets
            bucket = buckets.get(tenant)
            if bucket is None:
                if buckets is self._buckets and not self._has_place(rules.most_tenants, now_s):
                    tenant, buckets = OTHERS, self._kept
                bucket = buckets.get(tenant)
                if bucket is None:
                    bucket = buckets[tenant] = _Bucket(rate, self.share, now_s)
            elif buckets is self._buckets:
                self._buckets.move_to_end(tenant)
        bucket.fill(self.share, now_s)
        return tenant, bucket

    def _has_place(self, most: int, now_s: float) -> bool:
        """Buckets that are full again make room; those that are not are looked at later again."""
        for key in list(islice(self._buckets, _LOOKED_AT)):
            bucket = self._buckets[key]
            bucket.fill(self.share, now_s)
            if bucket.is_full(self.share):
                del self._buckets[key]
            else:
                self._buckets.move_to_end(key)
        return len(self._buckets) < most

    def _rate(self, tenant: bytes) -> Rate | None:
        rules = self.rules
        return None if rules is None else rules.of_tenants.get(tenant, rules.others)

    def _all(self) -> Iterator[_Bucket]:
        yield from self._kept.values()
        yield from self._buckets.values()
