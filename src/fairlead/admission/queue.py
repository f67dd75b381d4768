"""All requests that wait in one sidecar: who is next, who is refused, who is displaced, whose time is over.

Between bands the order is strict; in a band tenants share engine time fairly; a tenant's requests go by due time, then
by arrival. A request that has waited for `aging_s` goes first whatever its band, for a tenth of the engine time: so the
lowest band is slow, not dead. Every operation is logarithmic in what waits; only displacing looks at all tenants of a
band, of which there is a bounded number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, NamedTuple

from fairlead.admission.drain_rate import DrainRate
from fairlead.admission.flows import Account, Band
from fairlead.admission.limits import QueueRules
from fairlead.admission.waiting import Lane, Waiting

IsOpen = Callable[[Lane, int], bool]
Served = tuple[str, int, bytes]  # group, level and tenant, that were given engine time
Fits = Callable[[Waiting], bool]
_SPARE: Final = 64


class Taken(NamedTuple):
    """A request that is no longer in the queue, and must be given its endpoint and then charged."""

    waiting: Waiting
    group: Group
    band: Band
    tenant: bytes  # whose account is charged
    credit_share: float  # of its engine time, that those who have waited too long are owed afterwards


class Group:
    """What waits for models that some route connects."""

    __slots__ = ("aged_credit_ms", "bands", "drain")

    def __init__(self) -> None:
        self.bands: dict[int, Band] = {}  # those that have something waiting, highest level first
        self.aged_credit_ms = 0.0
        self.drain = DrainRate()


class WaitQueue:
    """`enter`, then exactly one of `next` (and `charge`), `remove`, `give_up`, `expire` for each request."""

    def __init__(self, rules: QueueRules) -> None:
        self.rules = rules
        self.requests = 0
        self.bytes = 0
        self.groups: dict[str, Group] = {}
        self.is_shared = False  # with other sidecars: what tenants were given is kept for them in `unsent`
        self.unsent: dict[Served, float] = {}
        self._numbers = 0
        self._deadlines: list[tuple[float, int, Waiting]] = []
        self._timed = 0  # live ones among them

    # ---- in -----------------------------------------------------------------------------------------------------

    def enter(self, waiting: Waiting, now_s: float) -> list[Waiting] | None:
        """Those that it displaced, who wait no more; None if it may not wait, and then nothing has changed."""
        if self.expected_wait_ms(waiting.lane.group, waiting.level, waiting.tenant, now_s) > self._longest_ms(waiting):
            return None
        account = self._account_of(waiting)
        of_tenant = self.rules.band(waiting.level).of_tenant
        if account is not None and of_tenant.reached(len(account.waiting), account.bytes + waiting.size_bytes):
            return None
        displaced: list[Waiting] = []
        while self._is_full_for(waiting):
            victim = self._victim(waiting)
            if victim is None:
                for each in reversed(displaced):  # room for a large body may take several, and still not be enough
                    self._push(each, now_s)
                return None
            self.remove(victim)
            displaced.append(victim)
        self._numbers += 1
        waiting.number = self._numbers
        self._push(waiting, now_s)
        return displaced

    def _push(self, waiting: Waiting, now_s: float) -> None:
        group = self.groups.get(waiting.lane.group)
        if group is None:
            group = self.groups[waiting.lane.group] = Group()
        band = group.bands.get(waiting.level)
        if band is None:
            band = Band(waiting.level, self.rules.most_tenants)
            group.bands[waiting.level] = band
            group.bands = dict(sorted(group.bands.items(), reverse=True))
        band.push(waiting)
        group.drain.began(now_s)
        self.requests += 1
        self.bytes += waiting.size_bytes
        if waiting.expires_s < inf:
            self._timed += 1
            heappush(self._deadlines, (waiting.expires_s, waiting.number, waiting))

    def _account_of(self, waiting: Waiting) -> Account | None:
        band = self._band(waiting.lane.group, waiting.level)
        return None if band is None else band.account_of(waiting.tenant)

    def _band(self, group: str, level: int) -> Band | None:
        found = self.groups.get(group)
        return None if found is None else found.bands.get(level)

    def _longest_ms(self, waiting: Waiting) -> float:
        rules = self.rules.band(waiting.level)
        own_ms = (waiting.expires_s - waiting.arrived_s) * 1e3
        return min(self.rules.limits.wait_ms, rules.limits.wait_ms, rules.of_tenant.wait_ms, own_ms)

    def _is_full_for(self, waiting: Waiting) -> bool:
        if self.rules.limits.reached(self.requests, self.bytes + waiting.size_bytes):
            return True
        bands = list(self._bands_at(waiting.level))
        requests, size_bytes = sum(band.requests for band in bands), sum(band.bytes for band in bands)
        return self.rules.band(waiting.level).limits.reached(requests, size_bytes + waiting.size_bytes)

    def _bands_at(self, level: int) -> Iterator[Band]:
        return (group.bands[level] for group in self.groups.values() if level in group.bands)

    def _victim(self, waiting: Waiting) -> Waiting | None:
        """Who must make room: the last of the lowest band below; in its own band, of a tenant with more waiting."""
        if self.rules.limits.reached(self.requests, self.bytes + waiting.size_bytes):
            lowest = min((level for group in self.groups.values() for level in group.bands), default=waiting.level)
            if lowest > waiting.level:
                return None
        else:  # the band's limit, so only one of the same band makes room
            lowest = waiting.level
        band = max(self._bands_at(lowest), key=_waiting_ms, default=None)
        account = None if band is None else band.most_loaded()
        if account is None:
            return None
        newest = account.waiting[next(reversed(account.waiting))]
        if lowest == waiting.level:
            own = self._account_of(waiting)
            own_ms = 0.0 if own is None else own.waiting_ms
            if own is account or account.waiting_ms - newest.cost_ms < own_ms + waiting.cost_ms:
                return None
        return newest

    # ---- out ----------------------------------------------------------------------------------------------------

    def next(self, group_name: str, is_open: IsOpen, now_s: float, fits: Fits | None = None) -> Taken | None:
        """The next of this group among open lanes, taken out; `charge` must follow. None: there is none.

        One that does not fit yet closes its lane to those behind it: else they would always take the room first.
        """
        group = self.groups.get(group_name)
        if group is None:
            return None
        closed: set[Lane] = set()
        while (chosen := self._first(group, is_open, now_s, closed)) is not None:
            (band, waiting), credit_share = chosen
            if fits is None or fits(waiting):
                tenant = band.take(waiting)
                self._forget(waiting)
                return Taken(waiting, group, band, tenant, credit_share)
            closed.add(waiting.lane)
            waiting.holds_up = True
        return None

    def _first(
        self, group: Group, is_open: IsOpen, now_s: float, closed: set[Lane]
    ) -> tuple[tuple[Band, Waiting], float] | None:
        """Who is next, and how much of its engine time those who have waited too long are owed afterwards."""
        ordinary: tuple[Band, Waiting] | None = None
        oldest: tuple[Band, Waiting] | None = None
        for level, band in group.bands.items():
            lanes = [queue for lane, queue in band.lanes.items() if lane not in closed and is_open(lane, level)]
            if not lanes:
                continue
            if ordinary is None and (first := band.first_of(iter(lanes))) is not None:
                ordinary = band, first
            head = band.oldest_of(iter(lanes))
            if (
                head is not None
                and now_s - head.arrived_s >= self.rules.aging_s
                and (oldest is None or head.arrived_s < oldest[1].arrived_s)
            ):
                oldest = band, head
        if ordinary is None:
            return None
        chosen, share, credit_share = ordinary, self.rules.aged_share, 0.0
        if oldest is None:
            group.aged_credit_ms = 0.0
        elif oldest[1] is not ordinary[1]:
            is_due = group.aged_credit_ms > 0
            chosen, credit_share = (oldest, share - 1) if is_due else (ordinary, share)
        return chosen, credit_share

    def charge(self, taken: Taken, took_ms: float, now_s: float) -> None:
        """What was `taken` takes this much of an engine; 0 if it came to nothing."""
        taken.band.charge(taken.tenant, took_ms)
        group = taken.group
        if self.is_shared and took_ms:
            served = taken.waiting.lane.group, taken.band.level, taken.tenant
            self.unsent[served] = self.unsent.get(served, 0.0) + took_ms
        group.aged_credit_ms += taken.credit_share * took_ms
        group.drain.gave(took_ms, now_s)
        self._drop_empty(group, taken.band)

    def others_gave(self, served: Served, took_ms: float) -> None:
        """Another sidecar gave a tenant engine time. Where nobody waits for it here, it counts for nothing."""
        group_name, level, tenant = served
        band = self._band(group_name, level)
        if band is not None:
            band.charge(tenant, took_ms)

    def remove(self, waiting: Waiting) -> bool:
        """It waits no more, for whatever reason; False if it did not wait."""
        account = waiting.account
        if account is None:
            return False
        group = self.groups[waiting.lane.group]
        band = group.bands[waiting.level]
        band.remove(waiting)
        self._forget(waiting)
        self._drop_empty(group, band)
        return True

    def expire(self, now_s: float, most: float = inf) -> list[Waiting]:
        """Those whose time is over, taken out; `most` of them, and the others when it is asked again."""
        over: list[Waiting] = []
        while len(over) < most and self.next_deadline_s <= now_s:
            waiting = heappop(self._deadlines)[2]
            if self.give_up(waiting):
                over.append(waiting)
        return over

    def give_up(self, waiting: Waiting) -> bool:
        """`remove`, of one that waits no longer by itself. What held others up is charged as if it had begun: else its
        tenant, who was given nothing, would be next again as soon as it came back, and hold them up once more.
        """
        band = self._band(waiting.lane.group, waiting.level)
        if waiting.holds_up and waiting.otherwise is None and band is not None and isinstance(waiting.account, Account):
            band.charge(waiting.account.tenant, waiting.cost_ms)
        return self.remove(waiting)

    def all(self) -> list[Waiting]:
        """Everything that waits, by arrival."""
        found = [
            waiting
            for group in self.groups.values()
            for band in group.bands.values()
            for lane in band.lanes.values()
            for waiting in lane.arrivals.values()
        ]
        return sorted(found, key=_number)

    @property
    def next_deadline_s(self) -> float:
        heap = self._deadlines
        while heap and heap[0][2].account is None:
            heappop(heap)
        return heap[0][0] if heap else inf

    def _forget(self, waiting: Waiting) -> None:
        self.requests -= 1
        self.bytes -= waiting.size_bytes
        if waiting.expires_s < inf:
            self._timed -= 1
            if len(self._deadlines) > 2 * self._timed + _SPARE:
                self._deadlines = [entry for entry in self._deadlines if entry[2].account is not None]
                heapify(self._deadlines)

    def _drop_empty(self, group: Group, band: Band) -> None:
        if not band.requests and group.bands.get(band.level) is band:
            del group.bands[band.level]
        if not group.bands:
            group.drain.paused()

    # ---- what to expect -----------------------------------------------------------------------------------------

    def expected_wait_ms(self, group_name: str, level: int, tenant: bytes, now_s: float) -> float:
        """That a new request would wait: what goes before it, over the rate at which that goes. 0 if unknown."""
        group = self.groups.get(group_name)
        if group is None or not group.bands:
            return 0.0
        rate = group.drain.per_ms(now_s)
        if rate is None:
            return 0.0
        before_ms = sum(band.waiting_ms for above, band in group.bands.items() if above > level)
        band = group.bands.get(level)
        if band is not None:
            account = band.account_of(tenant)
            own_ms = 0.0 if account is None else account.waiting_ms
            tenants = len(band.accounts) + (account is None)
            before_ms += min(band.waiting_ms, own_ms * tenants)
        return before_ms / rate


_number: Callable[[Waiting], int] = lambda waiting: waiting.number  # noqa: E731
_waiting_ms: Callable[[Band], float] = lambda band: band.waiting_ms  # noqa: E731
