"""What holds for queue and gate together, whatever arrives, ends and passes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.admission.admission import Admission, Rules
from fairlead.admission.limits import BandRules, QueueRules
from fairlead.admission.waiting import Verdict, Waiting
from fairlead.core.endpoint import Speed
from fairlead.core.load import Load
from tests.core.world import World as Pool

AGING_S = 50.0
BANDS = {
    level: BandRules(str(level), share=share, longest_wait_s=1000.0) for level, share in ((-1, 0.8), (0, 1.0), (1, 1.0))
}
_STEP = st.one_of(
    st.tuples(st.just("arrives"), st.integers(-1, 1), st.integers(0, 2), st.integers(1, 3000)),
    st.tuples(st.just("ends"), st.integers(0, 50), st.just(0), st.just(0)),
    st.tuples(st.just("leaves"), st.integers(0, 50), st.just(0), st.just(0)),
    st.tuples(st.just("passes"), st.integers(1, 40), st.just(0), st.just(0)),
    st.tuples(st.just("reloads"), st.booleans(), st.just(0), st.just(0)),
)


class World:
    """Two endpoints; a request that begins takes its prompt's load at the emptier one until it ends."""

    def __init__(self) -> None:
        pool = Pool()
        self.endpoints = [pool.endpoint(address, "m") for address in ("a:1", "b:1")]
        for endpoint in self.endpoints:
            endpoint.speed = Speed(1.0, 20.0)
        self.rules = Rules(QueueRules(bands=BANDS, aging_s=AGING_S), begin_within_ms=1000.0)
        self.admission = Admission(pool.router, self.rules)
        self.lane = self.admission.lane("m")
        self.now_s = 0.0
        self.inside: dict[Waiting, int] = {}  # tokens
        self.running: list[tuple[int, Load]] = []
        self.decided: dict[Waiting, Verdict] = {}
        self.began: list[Waiting] = []
        self.came_s: dict[int, float] = {}

    def arrives(self, level: int, tenant: int, tokens: int) -> None:
        def decide(verdict: Verdict) -> float:
            assert waiting not in self.decided, "each is decided once"
            self.decided[waiting] = verdict
            del self.inside[waiting]
            if verdict == "go":
                assert self.has_room(level), "none begins without room"
                self.began.append(waiting)
                self.takes(tokens)
            return float(tokens)

        waiting = Waiting(
            self.lane,
            decide,
            level=level,
            tenant=str(tenant).encode(),
            cost_ms=float(tokens),
            arrived_s=self.now_s,
            expires_s=self.now_s + 1000.0,
        )
        self.came_s[level] = self.now_s
        if self.admission.passes(self.lane, level, self.now_s):
            assert not any(each.level >= level for each in self.inside), "none goes past those that are next"
            self.takes(tokens)
            return
        self.inside[waiting] = tokens
        assert self.admission.enter(waiting, self.now_s)

    def takes(self, tokens: int) -> None:
        number = min(range(2), key=lambda each: self.endpoints[each].load.pending_prefill_tokens)
        load = Load(1, tokens, tokens)
        self.endpoints[number].take(load)
        self.running.append((number, load))

    def has_room(self, level: int) -> bool:
        share, above = BANDS[level].share, [at_s for other, at_s in self.came_s.items() if other > level]
        gives_way = share < 1 and bool(above) and self.now_s - max(above) < 60.0
        return self.admission.gate.is_open(self.lane, share, self.now_s, gives_way=gives_way)

    def released(self) -> None:
        self.began.clear()
        before = list(self.inside)
        while self.admission.release(self.now_s):
            pass
        levels = [waiting.level for waiting in self.began]
        aged = any(self.now_s - waiting.arrived_s >= AGING_S for waiting in before)
        assert aged or levels == sorted(levels, reverse=True), "no priority is inverted"
        for level in (-1, 0, 1):
            for tenant in (b"0", b"1", b"2"):
                flow = [w.number for w in self.began if (w.level, w.tenant) == (level, tenant)]
                assert flow == sorted(flow), "first in, first out"
        if self.inside:
            assert not self.has_room(max(waiting.level for waiting in self.inside)), "none waits while there is room"


@settings(max_examples=150, deadline=None)
@given(st.lists(_STEP, max_size=80))
def test_none_waits_beside_room_none_is_passed_by_a_lower_one_and_nothing_is_left(
    steps: list[tuple[str, int, int, int]],
) -> None:
    world = World()
    for what, first, tenant, tokens in steps:
        if what == "arrives":
            world.arrives(first, tenant, tokens)
        elif what == "ends" and world.running:
            number, load = world.running.pop(first % len(world.running))
            world.endpoints[number].give_back(load)
        elif what == "leaves" and world.inside:
            waiting = list(world.inside)[first % len(world.inside)]
            del world.inside[waiting]
            world.admission.leave(waiting)
        elif what == "passes":
            world.now_s += first
        elif what == "reloads":
            seconds = AGING_S if first else AGING_S + 1e-9
            rules = Rules(QueueRules(bands=BANDS, aging_s=seconds), begin_within_ms=1000.0)
            world.admission.use(rules, world.now_s)
            world.lane = world.admission.lane("m")
        world.released()
        assert world.admission.queue.requests == len(world.inside)
    world.admission.drain(world.now_s)
    queue = world.admission.queue
    assert not world.inside
    assert (queue.requests, queue.bytes, queue.next_deadline_s) == (0, 0, float("inf"))
    assert not any(group.bands for group in queue.groups.values())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=40, max_size=120), st.integers(1, 20))
def test_the_lowest_level_gets_its_tenth_however_much_comes_above_it(costs_ms: list[int], old: int) -> None:
    """With a stream above that never ends, of every second of engine time a tenth is of those that waited too long."""
    world = World()
    given_ms = {-1: 0.0, 1: 0.0}

    def enters(level: int, cost_ms: float, arrived_s: float) -> None:
        def decide(verdict: Verdict) -> float:
            assert verdict == "go"
            given_ms[level] += cost_ms
            return cost_ms

        waiting = Waiting(world.lane, decide, level=level, cost_ms=cost_ms, arrived_s=arrived_s)
        assert world.admission.enter(waiting, arrived_s)

    for _ in range(old):
        enters(-1, 100.0, 0.0)
    now_s = AGING_S + 1
    for cost_ms in costs_ms:
        enters(1, float(cost_ms), now_s)
    queue = world.admission.queue
    while (level := next(iter(queue.groups["m"].bands), None)) == 1 and len(queue.groups["m"].bands) > 1:
        taken = queue.next("m", lambda _lane, _level: True, now_s)
        assert taken is not None
        queue.charge(taken, taken.waiting.decide("go"), now_s)
        total_ms = given_ms[-1] + given_ms[1]
        assert given_ms[-1] >= 0.1 * total_ms - 300 - 100, "less than a tenth by one largest request at most"
        assert given_ms[-1] <= 0.1 * total_ms + 100 + 300, "and more by as much"
    assert level in (-1, 1, None)
