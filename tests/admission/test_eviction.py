"""Which streamed answer ends for a request of a higher level, and that it is one at a time."""

from __future__ import annotations

from fairlead.admission.admission import Admission, Rules
from fairlead.admission.eviction import PATIENCE_S, Evictions, Running
from fairlead.admission.waiting import Verdict, Waiting
from fairlead.core.load import Load
from tests.core.world import World as Pool

ANYWHERE = {"a:1", "b:1"}


def nothing() -> None:
    pass


def running(evictions: Evictions, level: int, address: str = "a:1", group: str = "m") -> Running:
    made = Running(group, level, address, nothing)
    evictions.add(made)
    return made


def test_the_lowest_level_goes_first_and_there_the_newest() -> None:
    evictions = Evictions()
    running(evictions, 0)
    running(evictions, -1)
    newest = running(evictions, -1)
    running(evictions, 5)
    assert evictions.choose("m", 1, ANYWHERE) is newest


def test_the_next_one_goes_when_the_last_is_gone() -> None:
    evictions = Evictions()
    older, newer = running(evictions, -1), running(evictions, -1)
    assert evictions.choose("m", 0, ANYWHERE) is newer
    assert evictions.choose("m", 0, ANYWHERE) is None
    assert not evictions.has_below("m", 0)
    evictions.remove(newer)
    assert evictions.choose("m", 0, ANYWHERE) is older


def test_equal_and_higher_levels_other_models_and_other_endpoints_are_left_alone() -> None:
    evictions = Evictions()
    running(evictions, 0)
    running(evictions, 1)
    running(evictions, -1, group="other")
    running(evictions, -1, address="elsewhere:1")
    assert evictions.choose("m", 0, ANYWHERE) is None


def test_what_has_ended_leaves_nothing_behind() -> None:
    evictions = Evictions()
    those = [running(evictions, level) for level in (-1, 0, -1)]
    evictions.choose("m", 1, ANYWHERE)
    for each in those:
        evictions.remove(each)
        evictions.remove(each)
    assert vars(evictions) == {"_running": {}, "_ending": {}}


class World:
    """A busy endpoint with a batch answer that is streamed; ended answers are in `ended`."""

    def __init__(self, *, evicts: bool = True) -> None:
        pool = Pool()
        self.endpoint, other = pool.endpoint("a:1", "m"), pool.endpoint("b:1", "m")
        other.take(Load(1, 20_000, 20_000))
        self.admission = Admission(pool.router, Rules(begin_within_ms=1000.0, evicts_lower=evicts))
        self.endpoint.take(Load(1, 20_000, 20_000))
        self.ended: list[Running] = []
        self.batch = Running(self.admission.lane("m").group, -1, "a:1", lambda: self.ended.append(self.batch))
        self.admission.evictions.add(self.batch)

    def waits(self, level: int) -> Waiting:
        waiting = Waiting(self.admission.lane("m"), lambda _: 0.0, level=level, arrived_s=0.0)
        assert self.admission.enter(waiting, 0.0)
        return waiting


def test_a_higher_level_that_has_waited_ends_a_lower_ones_answer() -> None:
    world = World()
    world.waits(1)
    world.admission.release(PATIENCE_S - 0.01)
    assert world.ended == []
    assert world.admission.next_event_s() <= PATIENCE_S, "nothing else may happen until then"
    world.admission.release(PATIENCE_S)
    world.admission.release(PATIENCE_S + 10)
    assert world.ended == [world.batch], "once"
    assert {name: counts.outcomes for name, counts in world.admission.counts.items()} == {"default": {"evicted": 1}}


def test_off_by_default_and_never_for_its_own_level() -> None:
    for world, level in ((World(evicts=False), 1), (World(), -1)):
        world.waits(level)
        world.admission.release(PATIENCE_S + 1)
        assert world.ended == []


def test_nothing_ends_where_the_room_would_be_of_no_use() -> None:
    drained, ejected = World(), World()
    drained.admission.router.planner.draining.add("a:1")
    for _ in range(3):
        ejected.endpoint.probed(False, 0.0, 3)
    for world in (drained, ejected):
        world.waits(1)
        world.admission.release(PATIENCE_S + 1)
        assert world.ended == []


def test_nothing_ends_for_who_found_room() -> None:
    world = World()
    decided: list[Verdict] = []

    def decide(verdict: Verdict) -> float:
        decided.append(verdict)
        return 0.0

    waiting = Waiting(world.admission.lane("m"), decide, level=1, arrived_s=0.0)
    assert world.admission.enter(waiting, 0.0)
    world.endpoint.give_back(Load(1, 20_000, 20_000))
    world.admission.release(PATIENCE_S + 1)
    assert decided == ["go"]
    assert world.ended == []
