"""Who is next, who is displaced, and what is left behind: nothing."""

from __future__ import annotations

from typing import Any

from fairlead.admission.limits import BandRules, Limits
from fairlead.admission.waiting import Lane, Waiting
from tests.admission.world import World, always_open


def test_first_come_first_served_for_one_tenant() -> None:
    world = World()
    for name in "abc":
        world.waits(name)
    assert world.leaves() == ["a", "b", "c"]


def test_a_higher_level_goes_first() -> None:
    world = World()
    world.waits("batch", level=-1)
    world.waits("chat", level=5)
    world.waits("usual")
    assert world.leaves() == ["chat", "usual", "batch"]


def test_tenants_share_engine_time_and_not_requests() -> None:
    world = World()
    for number in range(3):
        world.waits(f"long{number}", tenant=b"x", cost_ms=300)
    for number in range(6):
        world.waits(f"short{number}", tenant=b"y", cost_ms=100)
    order = world.leaves()
    assert order == ["long0", "short0", "short1", "short2", "long1", "short3", "short4", "short5", "long2"]


def test_a_tenant_that_returns_has_earned_nothing_by_its_absence() -> None:
    world = World()
    for number in range(20):
        world.waits(f"x{number}", tenant=b"x", cost_ms=100)
    assert world.leaves(10) == [f"x{number}" for number in range(10)]
    for number in range(5):
        world.waits(f"y{number}", tenant=b"y", cost_ms=100)
    order = world.leaves()
    assert [name[0] for name in order[:10]].count("y") == 5
    assert "yy" not in "".join(name[0] for name in order[1:10])


def test_a_tenant_that_leaves_and_returns_keeps_its_debt() -> None:
    world = World()
    world.waits("x0", tenant=b"x", cost_ms=1000)
    for number in range(20):
        world.waits(f"y{number}", tenant=b"y", cost_ms=100)
    assert world.leave() == "x0"
    world.waits("x1", tenant=b"x", cost_ms=1000)
    assert world.leaves(9) == [f"y{number}" for number in range(9)]


def test_what_is_due_first_goes_first_within_its_tenant_only() -> None:
    world = World()
    world.waits("x0", tenant=b"x")
    world.waits("x1", tenant=b"x", due_s=1.0)
    world.waits("y0", tenant=b"y")
    assert world.leaves() == ["x1", "y0", "x0"]


def test_a_full_model_does_not_block_another() -> None:
    world = World()
    full, free = Lane("full", "m"), Lane("free", "m")
    world.waits("a", lane=full, level=5)
    world.waits("b", lane=free)
    assert world.leaves(is_open=lambda lane, _: lane is free) == ["b"]
    assert world.queue.requests == 1


def test_one_that_does_not_fit_yet_closes_its_lane_and_no_other() -> None:
    world = World()
    world.waits("large", level=1, cost_ms=900)
    world.waits("small", level=1, cost_ms=10)
    world.waits("small, below", level=0, cost_ms=10)
    world.waits("elsewhere", lane=Lane("other", "m"), cost_ms=10)

    def fits(waiting: Waiting) -> bool:
        return waiting.cost_ms < 100

    taken = world.queue.next("m", always_open, 0.0, fits)
    assert taken is not None
    assert world.names[taken.waiting] == "elsewhere"
    assert world.queue.next("m", always_open, 0.0, fits) is None
    assert world.leaves() == ["large", "small", "small, below"]


def test_who_holds_others_up_and_leaves_has_had_its_turn() -> None:
    """A prompt that needs most of an engine, sent again and again with a short time to wait."""
    world = World()

    def leaves() -> str | None:
        taken = world.queue.next("m", always_open, world.now_s, lambda waiting: world.names[waiting] != "large")
        if taken is None:
            return None
        world.queue.charge(taken, taken.waiting.cost_ms, world.now_s)
        return world.names[taken.waiting]

    for number in range(5):
        world.waits(f"small {number}", tenant=b"small", cost_ms=10)
    assert leaves() == "small 0"
    first = world.waits("large", tenant=b"large", cost_ms=30)
    assert first is not None
    assert leaves() is None
    world.queue.give_up(first)
    world.waits("large", tenant=b"large", cost_ms=30)
    assert [leaves() for _ in range(3)] == ["small 1", "small 2", "small 3"]


def test_a_lower_level_is_slow_and_not_dead() -> None:
    world = World(aging_s=10.0, aged_share=0.1)
    world.waits("old", level=-1, cost_ms=100)
    world.now_s = 20.0
    for number in range(40):
        world.waits(f"chat{number}", level=1, cost_ms=100)
    order = world.leaves()
    assert order.index("old") == 1


def test_those_that_waited_too_long_get_their_share_and_no_more() -> None:
    world = World(aging_s=10.0, aged_share=0.1)
    for number in range(20):
        world.waits(f"old{number}", level=-1, cost_ms=100)
    world.now_s = 20.0
    for number in range(100):
        world.waits(f"chat{number}", level=1, cost_ms=100)
    order = world.leaves(100)
    assert 9 <= sum(name.startswith("old") for name in order) <= 11


def full_at(requests: int, **more: Any) -> World:
    return World(limits=Limits(requests=requests), **more)


def test_a_full_queue_refuses() -> None:
    world = full_at(1)
    assert world.waits("a") is not None
    assert world.waits("b") is None
    assert world.queue.requests == 1


def test_a_higher_level_displaces_the_last_of_the_lowest() -> None:
    world = full_at(3)
    world.waits("usual")
    world.waits("batch0", level=-1)
    world.waits("batch1", level=-1)
    assert world.waits("chat", level=1) is not None
    assert world.displaced == ["batch1"]
    assert world.leaves() == ["chat", "usual", "batch0"]


def test_a_lower_level_displaces_nobody() -> None:
    world = full_at(1)
    world.waits("chat", level=1)
    assert world.waits("batch", level=0) is None


def test_in_a_full_queue_a_tenant_with_little_displaces_one_with_much() -> None:
    world = full_at(4)
    for number in range(4):
        world.waits(f"x{number}", tenant=b"x")
    assert world.waits("y", tenant=b"y") is not None
    assert world.displaced == ["x3"]
    assert world.waits("x4", tenant=b"x") is None


def test_a_large_body_displaces_as_many_as_it_needs_or_none() -> None:
    world = World(limits=Limits(bytes=100))
    for number in range(4):
        world.waits(f"batch{number}", level=-1, size_bytes=25)
    assert world.waits("too large", level=1, size_bytes=101) is None
    assert world.displaced == []
    assert world.waits("large", level=1, size_bytes=50) is not None
    assert world.displaced == ["batch3", "batch2"]
    assert world.queue.bytes == 100
    assert world.leaves() == ["large", "batch0", "batch1"]


def test_a_tenant_has_a_limit_of_its_own() -> None:
    world = World(bands={0: BandRules(of_tenant=Limits(requests=1))})
    assert world.waits("x0", tenant=b"x") is not None
    assert world.waits("x1", tenant=b"x") is None
    assert world.waits("y0", tenant=b"y") is not None


def test_tenants_beyond_the_limit_share_one_account() -> None:
    world = World(most_tenants=2)
    for number in range(10):
        world.waits(str(number), tenant=str(number).encode())
    (band,) = world.queue.groups["m"].bands.values()
    assert len(band.accounts) == 3
    assert sorted(world.leaves(), key=int) == [str(number) for number in range(10)]


def test_expired_requests_leave_in_order_of_their_deadlines() -> None:
    world = World()
    world.waits("late", expires_s=9.0)
    world.waits("soon", expires_s=2.0)
    assert world.queue.next_deadline_s == 2.0
    assert [world.names[each] for each in world.queue.expire(5.0)] == ["soon"]
    assert world.leaves() == ["late"]


def test_removed_requests_leave_no_memory_behind() -> None:
    world = World()
    kept = world.waits("kept", expires_s=1e9)
    for _ in range(3):
        gone = [world.waits("gone", expires_s=1e6, tenant=b"x") for _ in range(2000)]
        for each in gone:
            assert each is not None
            assert world.queue.remove(each)
    assert kept is not None
    assert world.queue.requests == 1
    assert len(world.queue._deadlines) < 100
    (band,) = world.queue.groups["m"].bands.values()
    assert set(band.accounts) == {b""}


def test_a_queue_that_moves_says_how_long_a_newcomer_would_wait() -> None:
    world = World()
    for _ in range(100):
        world.waits("a", cost_ms=200)
    for _ in range(50):
        world.now_s += 0.1  # two engines: 200 ms of work every 100 ms
        world.leave()
    assert 4_000 < world.queue.expected_wait_ms("m", 0, b"", world.now_s) < 6_000
    assert world.queue.expected_wait_ms("m", 1, b"", world.now_s) == 0
    assert world.queue.expected_wait_ms("m", 0, b"another", world.now_s) == 0


def test_who_would_wait_longer_than_it_may_is_refused_at_once() -> None:
    world = World()
    for _ in range(100):
        world.waits("a", cost_ms=200)
    for _ in range(50):
        world.now_s += 0.1
        world.leave()
    assert world.waits("patient", expires_s=world.now_s + 20) is not None
    assert world.waits("hasty", expires_s=world.now_s + 1) is None
