"""The engine model: what a router may rely on, as small worlds, and its invariants over random traffic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.tools.simulate.engine import Engine
from fairlead.tools.simulate.engine_request import EngineRequest, Event, EventKind, RequestRefusedError
from fairlead.tools.simulate.parameters import EngineParameters

FAST = EngineParameters(
    prefill_ms_per_token=0.5,
    decode_ms_per_step=10.0,
    decode_ms_per_sequence=1.0,
    step_overhead_ms=2.0,
    token_budget=64,
    max_num_seqs=4,
    block_size=4,
    num_blocks=64,
    max_model_len=200,
)


def run_until_idle(engine: Engine) -> list[Event]:
    return [event for events in _steps(engine) for event in events]


def _steps(engine: Engine) -> Iterator[list[Event]]:
    while (now_ms := engine.next_step_ms()) is not None:
        yield engine.step(now_ms)


def chain(tokens: int, family: int = 0) -> tuple[int, ...]:
    return tuple(family * 1000 + index for index in range(tokens // FAST.block_size))


def event_times(events: list[Event], kind: EventKind) -> dict[str, float]:
    return {event.request_id: event.at_ms for event in events if event.kind is kind}


def test_a_lone_request_takes_prefill_and_then_one_step_for_each_further_token() -> None:
    engine = Engine(FAST)
    engine.submit(EngineRequest("a", prompt_tokens=40, output_tokens=3), 100.0)
    events = run_until_idle(engine)
    assert event_times(events, EventKind.FIRST_TOKEN) == {"a": 100.0 + 2.0 + 40 * 0.5}
    assert event_times(events, EventKind.FINISHED) == {"a": 122.0 + 2 * (2.0 + 10.0 + 1.0)}


def test_kv_of_another_engine_is_fetched_once_there_is_room_and_nothing_of_it_is_computed() -> None:
    """As vLLM does: without room for all its blocks, a request goes on waiting, and its KV stays where it is."""
    engine = Engine(replace(FAST, num_blocks=20))
    engine.submit(EngineRequest("first", prompt_tokens=40, output_tokens=20), 0.0)
    engine.submit(EngineRequest("fetched", 41, 2, chain(41, 1), is_fetched=True), 0.0)
    events = run_until_idle(engine)
    ended_ms = event_times(events, EventKind.FINISHED)["first"]
    assert event_times(events, EventKind.FIRST_TOKEN)["fetched"] == ended_ms + 2.0 + 1 * 0.5
    assert engine.counters.prompt_computed == 40 + 1
    assert engine.counters.prompt_external == 40
    assert engine.pool.match(chain(41, 1), 10) == 10


def test_of_fetched_kv_only_what_is_not_cached_is_external() -> None:
    engine = Engine(FAST)
    engine.submit(EngineRequest("before", 21, 1, chain(21, 1)), 0.0)
    run_until_idle(engine)
    engine.submit(EngineRequest("fetched", 41, 1, chain(41, 1), is_fetched=True), 1000.0)
    run_until_idle(engine)
    assert engine.counters.prompt_external == 20


def test_fetched_kv_that_a_preemption_took_is_computed() -> None:
    engine = Engine(replace(FAST, num_blocks=22))
    engine.submit(EngineRequest("first", 40, 45), 0.0)
    engine.submit(EngineRequest("fetched", 41, 20, chain(41, 1), is_fetched=True), 0.0)
    events = run_until_idle(engine)
    assert engine.counters.preemptions == 1
    assert engine.counters.prompt_external == 40
    alone = Engine(FAST)
    alone.submit(EngineRequest("fetched", 41, 20, chain(41, 1), is_fetched=True), 0.0)
    quick = event_times(run_until_idle(alone), EventKind.FINISHED)["fetched"]
    assert event_times(events, EventKind.FINISHED)["fetched"] > quick + 40 * 0.5


def test_attention_makes_later_tokens_of_a_prompt_and_longer_requests_slower() -> None:
    engine = Engine(replace(FAST, token_budget=32, prefill_ms_per_1k_before=10.0, decode_ms_per_1k_held=100.0))
    engine.submit(EngineRequest("a", prompt_tokens=40, output_tokens=2), 0.0)
    events = run_until_idle(engine)
    first_ms = 2.0 + 32 * 0.5 + 32 * 16 * 0.01  # the first 32 tokens have 16 before them on average
    second_ms = 2.0 + 8 * 0.5 + 8 * 36 * 0.01
    assert event_times(events, EventKind.FIRST_TOKEN)["a"] == pytest.approx(first_ms + second_ms)
    step_ms = 2.0 + 10.0 + 1.0 + 41 * 0.1  # the prompt, and the first token
    assert event_times(events, EventKind.FINISHED)["a"] == pytest.approx(first_ms + second_ms + step_ms)


def test_tokens_that_requests_hold_are_counted_until_they_leave() -> None:
    engine = Engine(replace(FAST, decode_ms_per_1k_held=1.0, num_blocks=12))
    for number in range(6):
        engine.submit(EngineRequest(str(number), 12, 20), float(number))
    engine.submit(EngineRequest("aborted", 12, 20), 6.0)
    engine.abort("aborted", 7.0)
    run_until_idle(engine)
    assert engine.counters.preemptions
    assert engine._held_tokens == 0


def test_an_engine_at_half_the_pace_takes_twice_as_long() -> None:
    times_ms = []
    for pace in (None, lambda _: 2.0):
        engine = Engine(FAST, pace)
        engine.submit(EngineRequest("a", 40, 5), 0.0)
        times_ms.append(event_times(run_until_idle(engine), EventKind.FINISHED)["a"])
    assert times_ms[1] == pytest.approx(2 * times_ms[0])


def test_a_server_receives_one_request_after_another_in_parallel_to_the_steps() -> None:
    engine = Engine(replace(FAST, request_overhead_ms=10.0))
    for name in ("a", "b"):
        engine.submit(EngineRequest(name, 8, 2), 0.0)
    assert (engine.waiting, engine.next_step_ms()) == (0, 10.0)
    events = run_until_idle(engine)
    a_first_ms, a_step_ms = 10.0 + 2.0 + 4.0, 2.0 + 10.0 + 1.0
    b_first_ms = a_first_ms + a_step_ms + 2.0 + 4.0  # heard of at 20, in the middle of a step
    assert event_times(events, EventKind.FIRST_TOKEN) == {"a": a_first_ms, "b": b_first_ms}
    assert event_times(events, EventKind.FINISHED) == {"a": a_first_ms + a_step_ms, "b": b_first_ms + a_step_ms}


def test_an_idle_server_s_time_is_not_saved_up() -> None:
    engine = Engine(replace(FAST, request_overhead_ms=10.0))
    for name, at_ms in (("a", 0.0), ("b", 1000.0)):
        engine.submit(EngineRequest(name, 8, 1), at_ms)
        assert event_times(run_until_idle(engine), EventKind.FINISHED) == {name: at_ms + 16.0}


def test_a_request_aborted_while_it_is_received_never_reaches_the_engine() -> None:
    engine = Engine(replace(FAST, request_overhead_ms=10.0))
    engine.submit(EngineRequest("a", 8, 1), 0.0)
    assert engine.abort("a", 5.0)
    assert run_until_idle(engine) == []
    engine.submit(EngineRequest("a", 8, 1), 6.0)
    assert event_times(run_until_idle(engine), EventKind.FINISHED) == {"a": 20.0 + 6.0}


def test_a_second_request_with_the_same_prefix_pays_only_for_what_is_not_cached() -> None:
    engine = Engine(FAST)
    engine.submit(EngineRequest("a", 40, 1, chain(40)), 0.0)
    run_until_idle(engine)
    engine.submit(EngineRequest("b", 42, 1, chain(42)), 1000.0)
    (first, finished) = run_until_idle(engine)
    assert first.at_ms == 1000.0 + 2.0 + 2 * 0.5
    assert finished.cached_tokens == 40


def test_the_last_prompt_token_is_always_computed() -> None:
    engine = Engine(FAST)
    for name in ("a", "b"):
        engine.submit(EngineRequest(name, 40, 1, chain(40)), 1000.0 * len(name))
        events = run_until_idle(engine)
    assert events[-1].cached_tokens == 36


def test_a_known_answer_is_cached_for_the_next_turn() -> None:
    engine = Engine(FAST)
    engine.submit(EngineRequest("turn 1", 8, 9, chain(16)), 0.0)
    run_until_idle(engine)
    engine.submit(EngineRequest("turn 2", 20, 1, chain(20)), 1000.0)
    assert run_until_idle(engine)[-1].cached_tokens == 16


def test_a_prompt_beyond_the_token_budget_is_computed_in_chunks_that_slow_decoding_down() -> None:
    engine = Engine(FAST)
    engine.submit(EngineRequest("decoding", 4, 100, every_token=True), 0.0)
    assert engine.next_step_ms() == 4.0
    engine.step(4.0)
    engine.submit(EngineRequest("long", 100, 1), 5.0)
    engine.step(17.0)  # the step that was under way
    with_chunk_ms = 2.0 + 63 * 0.5 + 10.0 + 1.0
    assert engine.next_step_ms() == 17.0 + with_chunk_ms
    assert [event.request_id for event in engine.step(17.0 + with_chunk_ms)] == ["decoding"]
    events = engine.step(17.0 + with_chunk_ms + 2.0 + 37 * 0.5 + 11.0)
    assert {event.request_id for event in events} == {"decoding", "long"}


def test_requests_beyond_max_num_seqs_wait_first_come_first_served() -> None:
    engine = Engine(replace(FAST, max_num_seqs=1))
    for name in ("a", "b", "c"):
        engine.submit(EngineRequest(name, 4, 5), 0.0)
    assert (engine.running, engine.waiting) == (1, 2)
    finished = event_times(run_until_idle(engine), EventKind.FINISHED)
    assert finished["a"] < finished["b"] < finished["c"]


def test_a_full_kv_cache_preempts_the_request_admitted_last_and_both_still_finish() -> None:
    engine = Engine(replace(FAST, num_blocks=8))
    engine.submit(EngineRequest("first", 8, 20), 0.0)
    engine.submit(EngineRequest("second", 8, 20), 0.0)
    events = run_until_idle(engine)
    assert {event.request_id for event in events if event.kind is EventKind.PREEMPTED} == {"second"}
    finished = {event.request_id: event for event in events if event.kind is EventKind.FINISHED}
    assert {name: event.generated_tokens for name, event in finished.items()} == {"first": 20, "second": 20}
    assert finished["first"].at_ms < finished["second"].at_ms


@pytest.mark.parametrize(("prompt", "output"), [(190, 11), (0, 1), (1, -1)])
def test_a_request_that_can_never_fit_is_refused(prompt: int, output: int) -> None:
    engine = Engine(FAST)
    with pytest.raises(RequestRefusedError):
        engine.submit(EngineRequest("a", prompt, output), 0.0)
    assert engine.next_step_ms() is None


@pytest.mark.parametrize(("prompt", "output"), [(30, 4), (33, 0)])
def test_a_request_beyond_the_whole_kv_cache_is_refused(prompt: int, output: int) -> None:
    with pytest.raises(RequestRefusedError, match="KV cache of 32"):
        Engine(replace(FAST, num_blocks=8)).submit(EngineRequest("a", prompt, output), 0.0)


@pytest.mark.parametrize(("prompt", "output"), [(30, 3), (32, 0), (1, 32)])
def test_a_request_that_takes_the_whole_kv_cache_finishes(prompt: int, output: int) -> None:
    engine = Engine(replace(FAST, num_blocks=8))
    engine.submit(EngineRequest("a", prompt, output), 0.0)
    assert run_until_idle(engine)[-1].kind is EventKind.FINISHED


def test_an_abort_frees_the_blocks_at_once_and_the_computed_ones_stay_cached() -> None:
    engine = Engine(FAST)
    engine.submit(EngineRequest("a", 100, 1, chain(100)), 0.0)
    engine.step(engine.next_step_ms() or 0.0)  # 64 of 100 tokens
    assert engine.abort("a", 35.0)
    assert (engine.pool.used, engine.pool.cached, engine.running) == (0, 16, 0)
    assert not engine.abort("a", 35.0)
    assert run_until_idle(engine) == []


def test_cached_blocks_are_evicted_from_the_end_of_the_prefix_used_least_recently() -> None:
    engine = Engine(replace(FAST, num_blocks=12))
    for second, family in enumerate((1, 2, 1)):
        engine.submit(EngineRequest("a", 21, 1, chain(20, family)), 1000.0 * second)
        run_until_idle(engine)
    engine.submit(EngineRequest("new", 13, 1, chain(12, 3)), 5000.0)
    run_until_idle(engine)
    assert engine.pool.match(chain(20, 1), 5) == 5
    assert engine.pool.match(chain(20, 2), 5) == 3


# --- invariants over random traffic ---

Arrival = tuple[int, int, int, int, bool, int]  # gap_ms, family, prompt, output, every_token, abort_after_ms (0: never)
ARRIVALS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 13, 40, 500]),
        st.integers(0, 2),
        st.integers(1, 90),
        st.integers(0, 40),
        st.booleans(),
        st.sampled_from([0, 0, 0, 5, 60]),
    ),
    max_size=14,
)
SMALL = st.builds(
    replace,
    st.just(FAST),
    num_blocks=st.integers(8, 40),
    max_num_seqs=st.integers(1, 5),
    token_budget=st.integers(5, 40),
    request_overhead_ms=st.sampled_from([0.0, 0.0, 1.0, 13.5, 100.0]),
)


class World:
    """Traffic through an engine, with what must hold checked at every turn."""

    def __init__(self, parameters: EngineParameters, every_token: bool | None = None) -> None:
        self.engine = Engine(parameters)
        self.every_token = every_token
        self.events: list[Event] = []
        self.requests: dict[str, EngineRequest] = {}
        self.aborted: set[str] = set()

    def play(self, arrivals: list[Arrival]) -> None:
        todo: list[tuple[float, int, EngineRequest | str]] = []
        now_ms = 0.25  # so that no arrival meets a step's end by chance of round numbers
        for index, (gap, family, prompt, output, every_token, abort_after) in enumerate(arrivals):
            now_ms += gap
            wanted = every_token if self.every_token is None else self.every_token
            request = EngineRequest(f"r{index}", prompt, output, chain(prompt + output, family), wanted)
            todo.append((now_ms, 2 * index, request))
            if abort_after:
                todo.append((now_ms + abort_after, 2 * index + 1, request.id))
        for at_ms, _, what in sorted(todo, key=lambda entry: entry[:2]):
            self._advance(at_ms)
            if isinstance(what, str):
                if self.engine.abort(what, at_ms):
                    self.aborted.add(what)
            else:
                try:
                    self.engine.submit(what, at_ms)
                    self.requests[what.id] = what
                except RequestRefusedError:
                    pass
            self._check()
        self._advance(float("inf"))

    def _advance(self, until_ms: float) -> None:
        while (now_ms := self.engine.next_step_ms()) is not None and now_ms <= until_ms:
            self.events += self.engine.step(now_ms)
            self._check()

    def _check(self) -> None:
        pool = self.engine.pool
        assert pool.private >= 0
        assert 0 <= pool.used <= pool.capacity
        assert pool.available + pool.used == pool.capacity
        assert pool.cached + pool.private <= pool.capacity
        assert all(users > 0 for users in pool._references.values())
        assert not pool._references.keys() & pool._idle.keys()
        assert self.engine.running <= self.engine.parameters.max_num_seqs


@given(SMALL, ARRIVALS)
def test_every_request_ends_with_exactly_its_tokens_and_all_blocks_come_back(
    parameters: EngineParameters, arrivals: list[Arrival]
) -> None:
    world = World(parameters)
    world.play(arrivals)
    finished = {event.request_id: event for event in world.events if event.kind is EventKind.FINISHED}
    assert finished.keys() == world.requests.keys() - world.aborted
    for name, event in finished.items():
        request = world.requests[name]
        assert event.generated_tokens == request.output_tokens
        assert event.cached_tokens < request.prompt_tokens
    assert (world.engine.pool.used, world.engine.running, world.engine.waiting) == (0, 0, 0)
    if not world.aborted:
        counters = world.engine.counters
        assert counters.generated == sum(request.output_tokens for request in world.requests.values())
        assert counters.prompt_cached + counters.prompt_computed == sum(
            request.prompt_tokens for request in world.requests.values()
        )


@given(SMALL, ARRIVALS)
def test_cached_tokens_never_exceed_what_earlier_requests_stored(
    parameters: EngineParameters, arrivals: list[Arrival]
) -> None:
    world = World(parameters)
    world.play(arrivals)
    earlier: set[int] = set()  # hashes that a request before this one could have stored
    for name, request in world.requests.items():
        cached = max((event.cached_tokens for event in world.events if event.request_id == name), default=0)
        hashes = request.block_hashes
        found = next((index for index, block in enumerate(hashes) if block not in earlier), len(hashes))
        assert 0 <= cached <= found * parameters.block_size
        earlier.update(hashes)


@given(SMALL, ARRIVALS)
def test_tokens_come_one_by_one_in_order_also_across_preemptions(
    parameters: EngineParameters, arrivals: list[Arrival]
) -> None:
    world = World(parameters, every_token=True)
    world.play(arrivals)
    seen: defaultdict[str, list[int]] = defaultdict(list)
    for event in world.events:
        only_token = event.kind is EventKind.FINISHED and event.generated_tokens <= 1  # told by FIRST_TOKEN already
        if event.kind is not EventKind.PREEMPTED and not only_token:
            seen[event.request_id].append(event.generated_tokens)
    for tokens in seen.values():
        assert tokens == list(range(1, len(tokens) + 1))


@given(SMALL, ARRIVALS)
def test_jumping_over_equal_steps_gives_the_same_events_at_the_same_times_as_making_each(
    parameters: EngineParameters, arrivals: list[Arrival]
) -> None:
    jumping, stepping, again = World(parameters, False), World(parameters, True), World(parameters, True)
    for world in (jumping, stepping, again):
        world.play(arrivals)
    assert stepping.events == again.events

    assert _without_tokens(jumping) == _without_tokens(stepping)


def _without_tokens(world: World) -> list[tuple[float, str, str, int, int]]:
    """In one order: within a step, events of different requests have none."""
    return sorted(
        (event.at_ms, event.kind.value, event.request_id, event.generated_tokens, event.cached_tokens)
        for event in world.events
        if event.kind is not EventKind.TOKEN
    )
