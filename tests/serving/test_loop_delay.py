"""What keeps the event loop is seen, and counted as long as it was."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from fairlead.core.histogram import DELAY_SECONDS, Histogram
from fairlead.core.stalls import STALL_S, Stalls
from fairlead.serving.loop_delay import watch_loop
from tests.waiting import until


async def test_what_keeps_the_loop_is_counted_by_how_long() -> None:
    delays_s, stalls = Histogram(DELAY_SECONDS), Stalls()
    watching = asyncio.create_task(watch_loop(delays_s, stalls, time.perf_counter, look_s=0.01))
    try:
        await asyncio.sleep(0)  # it has set its timer
        time.sleep(0.3)  # noqa: ASYNC251 - this is what is to be seen
        await until(lambda: delays_s.count)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    assert delays_s.sum >= 0.28
    assert sum(delays_s.counts[DELAY_SECONDS.index(0.5) :]) >= 1


def test_what_began_before_a_stall_is_known_to_have_been_timed_over_it_and_what_began_later_is_not() -> None:
    stalls = Stalls()
    assert not stalls.any_since(0.0, 100.0), "nobody looks"
    for now_s in (1.0, 1.5, 2.0):
        stalls.look(now_s)
    assert not stalls.any_since(0.0, 2.5)
    assert stalls.any_since(1.9, 2.0 + STALL_S), "before anybody looks"
    stalls.look(62.0)
    assert stalls.any_since(1.9, 62.1)
    assert not stalls.any_since(62.05, 62.1)
