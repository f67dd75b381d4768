"""What holds for the queue whatever is done to it."""

from __future__ import annotations

import time
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.admission.limits import BandRules, Limits, QueueRules
from fairlead.admission.queue import WaitQueue
from fairlead.admission.waiting import Lane, Waiting
from tests.admission.world import always_open, ignore

LANES = (Lane("a", "m"), Lane("b", "m"), Lane("c", "other"))
_STEP = st.one_of(
    st.tuples(
        st.just("enter"),
        st.integers(-1, 1),
        st.integers(0, 3),
        st.integers(0, 2),
        st.integers(1, 1000),
        st.integers(0, 60),
    ),
    st.tuples(st.just("next"), st.integers(0, 7)),
    st.tuples(st.just("remove"), st.integers(0, 1000)),
    st.tuples(st.just("pass"), st.integers(1, 30)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_STEP, max_size=120))
def test_every_request_leaves_once_in_order_and_the_counts_are_those_of_what_waits(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    rules = QueueRules(
        limits=Limits(requests=12, bytes=3000),
        bands={0: BandRules(of_tenant=Limits(requests=6))},
        aging_s=20.0,
        most_tenants=2,
    )
    queue, now_s = WaitQueue(rules), 0.0
    inside: dict[Waiting, None] = {}
    left: list[Waiting] = []
    for what, *arguments in steps:
        if what == "enter":
            level, tenant, lane, cost_ms, ttl_s = arguments
            waiting = Waiting(
                LANES[lane],
                ignore,
                level=level,
                tenant=str(tenant).encode(),
                cost_ms=float(cost_ms),
                size_bytes=cost_ms,
                arrived_s=now_s,
                expires_s=now_s + ttl_s + 1,
            )
            displaced = queue.enter(waiting, now_s)
            if displaced is not None:
                inside[waiting] = None
                for each in displaced:
                    assert each.level <= waiting.level
                    del inside[each]
        elif what == "next":
            is_open = {lane: bool(arguments[0] >> place & 1) for place, lane in enumerate(LANES)}

            def may_go(lane: Lane, _: int, is_open: dict[Lane, bool] = is_open) -> bool:
                return is_open[lane]

            for group in ("m", "other"):
                oldest_s = min((w.arrived_s for w in inside), default=now_s)
                taken = queue.next(group, may_go, now_s)
                could = [w for w in inside if is_open[w.lane] and w.lane.group == group]
                assert (taken is None) == (not could)  # work conserving
                if taken is not None:
                    if now_s - oldest_s < rules.aging_s:
                        assert taken.waiting.level == max(w.level for w in could)  # strict between bands
                    del inside[taken.waiting]
                    left.append(taken.waiting)
                    queue.charge(taken, taken.waiting.cost_ms, now_s)
        elif what == "remove" and inside:
            waiting = list(inside)[arguments[0] % len(inside)]
            assert queue.remove(waiting)
            assert not queue.remove(waiting)
            del inside[waiting]
        elif what == "pass":
            now_s += arguments[0]
            for waiting in queue.expire(now_s):
                assert waiting.expires_s <= now_s
                del inside[waiting]
            assert all(w.expires_s > now_s for w in inside)
        assert queue.requests == len(inside)
        assert queue.bytes == sum(w.size_bytes for w in inside)
        assert queue.requests <= 12
        assert queue.bytes <= 3000
        assert queue.all() == sorted(inside, key=lambda w: w.number)
    for waiting in list(inside):
        queue.remove(waiting)
    assert (queue.requests, queue.bytes) == (0, 0)
    assert not any(group.bands for group in queue.groups.values())
    assert queue.next_deadline_s == float("inf")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 500)), min_size=2, max_size=80))
def test_tenants_that_always_have_work_differ_by_one_largest_request_of_each(asked: list[tuple[int, int]]) -> None:
    queue = WaitQueue(QueueRules())
    left_of: dict[bytes, int] = defaultdict(int)
    for tenant, cost_ms in asked:
        name = str(tenant).encode()
        queue.enter(Waiting(LANES[0], ignore, tenant=name, cost_ms=float(cost_ms)), 0.0)
        left_of[name] += 1
    largest = max(cost_ms for _, cost_ms in asked)
    served: dict[bytes, float] = dict.fromkeys(left_of, 0.0)
    last: dict[bytes, int] = {}
    while all(left_of.values()):
        taken = queue.next("m", always_open, 0.0)
        assert taken is not None
        waiting = taken.waiting
        queue.charge(taken, waiting.cost_ms, 0.0)
        served[waiting.tenant] += waiting.cost_ms
        left_of[waiting.tenant] -= 1
        assert waiting.number > last.get(waiting.tenant, 0)  # first in, first out
        last[waiting.tenant] = waiting.number
        if all(left_of.values()):
            assert max(served.values()) - min(served.values()) <= largest


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=30, max_size=120), st.integers(1, 300))
def test_nobody_starves_below_a_band_that_always_has_work(costs_ms: list[int], own_ms: int) -> None:
    queue = WaitQueue(QueueRules(aging_s=1.0, aged_share=0.1))
    low = Waiting(LANES[0], ignore, level=-1, cost_ms=float(own_ms), arrived_s=0.0)
    queue.enter(low, 0.0)
    for cost_ms in costs_ms:
        queue.enter(Waiting(LANES[0], ignore, level=1, cost_ms=float(cost_ms), arrived_s=2.0), 2.0)
    for _ in range(2):  # one request of the other band, for a tenth of which it then has credit
        taken = queue.next("m", always_open, 2.0)
        assert taken is not None
        queue.charge(taken, taken.waiting.cost_ms, 2.0)
        if taken.waiting is low:
            break
    assert low.account is None


def test_a_hundred_thousand_waiting_requests_cost_no_more_each_than_a_thousand() -> None:
    def each_us(count: int) -> float:
        queue = WaitQueue(QueueRules())
        began = time.process_time()
        for number in range(count):
            tenant = str(number % 200).encode()
            queue.enter(
                Waiting(LANES[0], ignore, tenant=tenant, cost_ms=float(number % 97 + 1), expires_s=1e6 + number % 501),
                0.0,
            )
        for _ in range(count):
            taken = queue.next("m", always_open, 0.0)
            assert taken is not None
            queue.charge(taken, taken.waiting.cost_ms, 0.0)
        return (time.process_time() - began) / count * 1e6

    few = min(each_us(2000) for _ in range(3))
    many = (each_us(100_000) for _ in range(3))  # a neighbour's use of the caches counts, too
    assert any(each < 8 * few for each in many)  # the logarithm has grown by half; the rest is the processor's cache
