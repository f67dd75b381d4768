"""What keeps the event loop is seen, and counted as long as it was."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from fairlead.core.histogram import DELAY_SECONDS, Histogram
from fairlead.serving.loop_delay import watch_loop
from tests.waiting import until


async def test_what_keeps_the_loop_is_counted_by_how_long() -> None:
    delays_s = Histogram(DELAY_SECONDS)
    watching = asyncio.create_task(watch_loop(delays_s, look_s=0.01))
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
