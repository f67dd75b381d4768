"""Whatever happens in whatever order: each request that waits is answered once, and nothing of it is left."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.admission.limits import Limits, QueueRules
from fairlead.admission.rates import Rate, RateRules
from fairlead.core.load import Load
from fairlead.core.objective import Slo
from fairlead.core.reported import EngineReport
from tests.extproc.test_waiting import BANDS, NAMING, Room
from tests.extproc.world import Conversation, later, response_headers, response_trailers, streamed_headers

PACED = replace(NAMING, slos={"small": Slo(tpot_ms=25.0)})  # of those that may wait for it, half of their wait


_EVENT = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from(["chat", "batch", "default"]), st.integers(0, 2)),
    st.tuples(st.just("answer"), st.sampled_from([200, 429, 500, 503]), st.integers(0, 30)),
    st.tuples(st.just("leave"), st.just(""), st.integers(0, 30)),
    st.tuples(st.just("report"), st.integers(0, 6), st.integers(0, 1)),
    st.tuples(st.just("pass"), st.integers(1, 8000), st.just(0)),
    st.tuples(st.just("reload"), st.booleans(), st.just(0)),
    st.tuples(st.just("drain"), st.just(0), st.integers(0, 5)),
    st.tuples(st.just("stream"), st.just(0), st.integers(0, 30)),
)


async def played(events: list[tuple[str, object, int]]) -> None:
    room = Room(QueueRules(limits=Limits(requests=6), bands=BANDS, aging_s=5.0), busy=False)
    room.is_slow()
    evicting = replace(room.rules, evicts_lower=True)
    room.use(evicting, PACED)
    room.services.rates.use(RateRules(others=Rate(tokens=1e9)), 0.0)
    open_: list[Conversation] = []
    for what, argument, number in events:
        if what == "ask":
            open_.append(room.ask(x_priority=str(argument), x_tenant=str(number)))
            open_[-1].stream.send = lambda _: None
        elif what == "answer" and open_:
            conversation = open_.pop(number % len(open_))
            if conversation.stream.in_flight is not None:
                conversation.say(response_headers(int(str(argument))), response_trailers())
            conversation.stream.close()
        elif what == "leave" and open_:
            open_.pop(number % len(open_)).stream.close()
        elif what == "report":
            endpoint = list(room.endpoints.values())[number]
            running = max(0, endpoint.load.inflight_requests - int(str(argument)))
            now_s = room.clock.now_s
            endpoint.reported(
                EngineReport(
                    running_requests=running,
                    waiting_requests=int(str(argument)),
                    read_s=now_s,
                    changed_s=now_s,
                    stale=False,
                )
            )
        elif what == "pass":
            room.clock.now_s += int(str(argument)) / 1e3
            room.services.waiting._release()
        elif what == "reload":
            room.use(evicting if argument else None, PACED)
        elif what == "drain" and number == 0 and not room.services.admission.is_draining:
            room.services.waiting.drain()
        elif what == "stream" and open_:
            conversation = open_[number % len(open_)]
            if conversation.stream.in_flight is not None and conversation.stream.response_phase == "start":
                conversation.say(streamed_headers())
        for _ in range(3):
            await asyncio.sleep(0)
        waits = sum(c.stream.waiting is not None for c in open_)
        assert room.waiting == waits <= 6
        sent = sum(c.stream.in_flight is not None for c in open_)
        assert sum(e.load.inflight_requests for e in room.endpoints.values()) == sent
    for conversation in open_:
        if conversation.stream.held is not None and conversation.stream.waiting is None:
            assert len(await later(conversation)) == 1
        conversation.stream.close()
    assert room.is_clean()
    evictions = room.services.admission.evictions
    assert vars(evictions) == {"_running": {}, "_ending": {}}
    assert all(e.load == Load() for e in room.endpoints.values())
    assert room.services.recorder.stream_failures == 0


@settings(max_examples=150, deadline=None)
@given(st.lists(_EVENT, max_size=60))
def test_each_is_answered_once_and_nothing_is_left(events: list[tuple[str, object, int]]) -> None:
    asyncio.run(played(events))
