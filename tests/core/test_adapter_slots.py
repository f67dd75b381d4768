"""Which adapters an engine is taken to have loaded, and what a request for another waits for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.adapter_slots import AdapterSlots
from fairlead.core.reported import EngineReport
from tests.core.world import World


def report(*running: str, waiting: tuple[str, ...] = (), slots: int = 2) -> EngineReport:
    return EngineReport(
        running_requests=len(running) + len(waiting),
        adapter_slots=slots,
        running_adapters=running,
        waiting_adapters=waiting,
        stale=False,
    )


def two_slots(*served: str) -> AdapterSlots:
    """After one request for each of `served`, one after the other."""
    slots = AdapterSlots(2)
    for name in served:
        slots.begin(name)
        slots.end(name, served=True)
    return slots


def test_an_adapter_that_answered_stays_loaded() -> None:
    assert two_slots("legal").waits_for("legal") is None
    assert two_slots("legal").waits_for("medical") == (True, 0)


def test_the_adapter_used_least_recently_makes_room() -> None:
    slots = two_slots("legal", "medical", "legal", "finance")
    assert slots.loaded == ("legal", "finance")
    assert slots.waits_for("medical") == (True, 0)


def test_where_all_slots_have_running_requests_the_next_adapter_waits_for_one_of_them() -> None:
    slots = two_slots()
    for name in ("legal", "medical", "finance"):
        slots.begin(name)
    assert slots.waits_for("legal") is None
    assert slots.waits_for("finance") == (False, 1)  # the one in flight loads it
    assert slots.waits_for("travel") == (True, 2)
    slots.end("legal", served=True)
    assert slots.waits_for("finance") is None
    assert slots.waits_for("legal") == (True, 1)


def test_adapters_that_others_use_are_loaded_and_take_slots() -> None:
    slots = two_slots("legal")
    slots.reported(report("medical", waiting=("finance",)))
    assert slots.waits_for("medical") is None
    assert slots.waits_for("legal") == (True, 1)
    slots.reported(report("travel"))
    assert slots.loaded[-1] == "travel"
    assert slots.waits_for("medical") is None or slots.waits_for("finance") is None


def test_names_of_an_idle_engines_last_step_take_no_slots() -> None:
    slots = two_slots("legal")
    slots.reported(EngineReport(running_requests=0, adapter_slots=2, running_adapters=("medical",), stale=False))
    assert slots.waits_for("legal") is None
    assert slots.waits_for("finance") == (True, 0)


def test_a_refused_request_has_loaded_nothing() -> None:
    slots = two_slots()
    slots.begin("legal")
    slots.end("legal", served=False)
    assert slots.waits_for("legal") == (True, 0)


def test_a_restarted_engine_has_none_loaded() -> None:
    slots = two_slots("legal")
    slots.restarted(1)
    assert slots.waits_for("legal") == (True, 0)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["begin", "end", "refuse"]), st.sampled_from("abcdef")),
            st.tuples(st.just("report"), st.lists(st.sampled_from("abcdef"), unique=True, max_size=4)),
        )
    ),
    st.integers(1, 4),
)
def test_no_more_adapters_than_slots_are_taken_to_be_loaded_but_those_in_use(history: list, count: int) -> None:  # type: ignore[type-arg]
    slots = AdapterSlots(count)
    in_use: list[str] = []
    elsewhere: list[str] = []
    for kind, what in history:
        if kind == "begin":
            slots.begin(what)
            in_use.append(what)
        elif kind == "report":
            slots.reported(report(*what, slots=count))
            elsewhere = what
        elif what in in_use:
            in_use.remove(what)
            slots.end(what, served=kind == "end")
        assert len(slots.loaded) == len(set(slots.loaded)) <= max(count, len(elsewhere))
    while in_use:
        slots.end(in_use.pop(), served=True)
    slots.reported(report(slots=count))
    assert len(slots.loaded) <= count


def test_a_request_goes_where_its_adapter_is_loaded() -> None:
    world = World("fairlead", tie_ms=0.0)
    world.endpoint("a:1")
    world.endpoint("b:1")
    first = world.admit(adapter="legal")
    first.sent(first.request, 0.0)
    first.served(first.address, 200, 0.0, in_one_piece=True)
    first.ended(0.0)
    for _ in range(3):
        assert world.pick_and_end(adapter="legal") == first.address


def test_a_load_is_pending_work_for_whoever_comes_next() -> None:
    world = World("fairlead")
    endpoint = world.endpoint("a:1", prefill_ms_per_token=0.1)
    world.admit(tokens=1000, adapter="legal")
    assert endpoint.load.pending_prefill_tokens == 1000 + round(endpoint.speed.adapter_load_ms / 0.1)
    world.admit(tokens=1000, adapter="legal")
    assert endpoint.load.pending_prefill_tokens == 2000 + round(endpoint.speed.adapter_load_ms / 0.1)
