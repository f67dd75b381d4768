"""Fair shares of one band: which tenant's request is next, by the engine time that each has been given.

Each tenant has an account of engine milliseconds. The least served account goes next and is charged what its request
takes, so two tenants that always have work differ by one request of each at most, however long their prompts are. A
tenant that returns starts where those are that are being served: to be idle earns nothing, and to leave and return
clears no debt.
Source: start-time fair queueing (Goyal, 1996), over engine time instead of bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import Final

from fairlead.admission.waiting import Lane, Waiting

OTHERS: Final = b"\0others"  # no header value has a NUL
_KEPT_DEBTS: Final = 4096
_SPARE: Final = 64  # removed entries that a heap may hold besides as many as it has live ones


class Account:
    """What one tenant was given in this band, and what it has waiting there."""

    __slots__ = ("bytes", "flows", "served_ms", "tenant", "waiting", "waiting_ms")

    def __init__(self, tenant: bytes, served_ms: float) -> None:
        self.tenant = tenant
        self.served_ms = served_ms
        self.waiting: OrderedDict[int, Waiting] = OrderedDict()  # by arrival
        self.waiting_ms = 0.0
        self.bytes = 0
        self.flows: dict[Lane, Flow] = {}


class Flow:
    """Requests of one tenant in one lane: the first due first, then the first come."""

    __slots__ = ("account", "by_due", "lane", "live")

    def __init__(self, account: Account, lane: LaneQueue) -> None:
        self.account = account
        self.lane = lane
        self.by_due: list[tuple[float, int, Waiting]] = []
        self.live = 0

    def push(self, waiting: Waiting) -> None:
        heappush(self.by_due, (waiting.due_s, waiting.number, waiting))
        self.live += 1

    def first(self) -> Waiting:
        """Needs one that is live."""
        while self.by_due[0][2].flow is not self:
            heappop(self.by_due)
        return self.by_due[0][2]

    def removed(self) -> None:
        """One of it waits no more, and its `flow` says so."""
        self.live -= 1
        if len(self.by_due) > 2 * self.live + _SPARE:
            self.by_due = [entry for entry in self.by_due if entry[2].flow is self]
            heapify(self.by_due)


class LaneQueue:
    """What waits in one lane of one band."""

    __slots__ = ("arrivals", "by_served")

    def __init__(self) -> None:
        self.arrivals: OrderedDict[int, Waiting] = OrderedDict()
        self.by_served: list[tuple[float, int, Flow]] = []  # an account only ever grows: what is too low is put right

    def least_served(self) -> Flow:
        """Needs one request that waits."""
        heap = self.by_served
        while True:
            served_ms, number, flow = heap[0]
            if not flow.live:
                heappop(heap)
            elif served_ms != flow.account.served_ms:
                heapreplace(heap, (flow.account.served_ms, number, flow))
            else:
                return flow


class Band:
    """All that waits at one level for one group of models."""

    __slots__ = ("accounts", "bytes", "debts", "lanes", "level", "most_tenants", "requests", "virtual_ms", "waiting_ms")

    def __init__(self, level: int, most_tenants: int) -> None:
        self.level = level
        self.most_tenants = most_tenants
        self.accounts: dict[bytes, Account] = {}  # that have something waiting
        self.debts: OrderedDict[bytes, float] = OrderedDict()  # what those were given that have not, engine ms
        self.lanes: dict[Lane, LaneQueue] = {}
        self.virtual_ms = 0.0  # that the last served account had been given
        self.requests = 0
        self.waiting_ms = 0.0
        self.bytes = 0

    def account_of(self, tenant: bytes) -> Account | None:
        """That `tenant` would join now; None: a new one."""
        account = self.accounts.get(tenant)
        if account is None and len(self.accounts) >= self.most_tenants:
            return self.accounts.get(OTHERS)
        return account

    def push(self, waiting: Waiting) -> None:
        account = self.account_of(waiting.tenant)
        if account is None:
            tenant = waiting.tenant if len(self.accounts) < self.most_tenants else OTHERS
            account = Account(tenant, max(self.virtual_ms, self.debts.pop(tenant, 0.0)))
            self.accounts[tenant] = account
        lane = self.lanes.get(waiting.lane)
        if lane is None:
            lane = self.lanes[waiting.lane] = LaneQueue()
        flow = account.flows.get(waiting.lane)
        if flow is None:
            flow = account.flows[waiting.lane] = Flow(account, lane)
            heappush(lane.by_served, (account.served_ms, waiting.number, flow))
        waiting.account, waiting.flow = account, flow
        flow.push(waiting)
        lane.arrivals[waiting.number] = account.waiting[waiting.number] = waiting
        account.waiting_ms += waiting.cost_ms
        account.bytes += waiting.size_bytes
        self.requests += 1
        self.waiting_ms += waiting.cost_ms
        self.bytes += waiting.size_bytes

    def remove(self, waiting: Waiting) -> None:
        """It waits no more; it is one of this band."""
        account, flow = waiting.account, waiting.flow
        assert isinstance(account, Account)
        assert isinstance(flow, Flow)
        waiting.account = waiting.flow = None
        flow.removed()
        del flow.lane.arrivals[waiting.number], account.waiting[waiting.number]
        account.waiting_ms -= waiting.cost_ms
        account.bytes -= waiting.size_bytes
        self.requests -= 1
        self.waiting_ms -= waiting.cost_ms
        self.bytes -= waiting.size_bytes
        if not flow.live:
            del account.flows[waiting.lane]
        if not flow.lane.arrivals:
            del self.lanes[waiting.lane]
        if not account.waiting:
            del self.accounts[account.tenant]
            self._keep_debt(account.tenant, account.served_ms)
        if not self.requests:
            self.waiting_ms, self.bytes = 0.0, 0  # sums of floats drift
            self.debts.clear()  # nobody waits for anybody any more

    def take(self, waiting: Waiting) -> bytes:
        """It is given an endpoint; the account to `charge` for it."""
        account = waiting.account
        assert isinstance(account, Account)
        self.virtual_ms = max(self.virtual_ms, account.served_ms)
        self.remove(waiting)
        return account.tenant

    def charge(self, tenant: bytes, took_ms: float) -> None:
        account = self.accounts.get(tenant)
        if account is not None:
            account.served_ms += took_ms
        elif self.requests:
            self._keep_debt(tenant, self.debts.get(tenant, self.virtual_ms) + took_ms)

    def first_of(self, lanes: Iterator[LaneQueue]) -> Waiting | None:
        """The next of these lanes, by fair shares."""
        best: tuple[float, int] | None = None
        found = None
        for lane in lanes:
            flow = lane.least_served()
            head = flow.first()
            key = flow.account.served_ms, head.number
            if best is None or key < best:
                best, found = key, head
        return found

    def oldest_of(self, lanes: Iterator[LaneQueue]) -> Waiting | None:
        heads = [next(iter(lane.arrivals.values())) for lane in lanes]
        return min(heads, key=_number, default=None)

    def most_loaded(self) -> Account | None:
        """The account with the most engine time waiting."""
        return max(self.accounts.values(), key=_waiting_ms, default=None)

    def _keep_debt(self, tenant: bytes, served_ms: float) -> None:
        """`tenant` has nothing waiting: what it was given counts until those who are served have caught up with it."""
        debts = self.debts
        for name in list(islice(debts, 2)):
            if debts[name] <= self.virtual_ms or len(debts) >= _KEPT_DEBTS:
                del debts[name]
        debts[tenant] = served_ms
        debts.move_to_end(tenant)


_number: Callable[[Waiting], int] = lambda waiting: waiting.number  # noqa: E731
_waiting_ms: Callable[[Account], float] = lambda account: account.waiting_ms  # noqa: E731
