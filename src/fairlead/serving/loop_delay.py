"""How late the event loop is: what keeps it, or takes the CPU from it, keeps every request for as long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from fairlead.core.histogram import Histogram
from fairlead.core.stalls import Stalls

_LOOK_S: Final = 0.05


async def watch_loop(
    delays_s: Histogram, stalls: Stalls, clock_s: Callable[[], float], look_s: float = _LOOK_S
) -> None:
    """Count by how many seconds a timer of `look_s` came late, again and again. Runs until cancelled.

    What keeps the loop for `look_s` or longer is always seen, less its first part: up to `look_s`.
    """
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + look_s
        await asyncio.sleep(look_s)
        delays_s.observe(max(0.0, loop.time() - due_s))
        stalls.look(clock_s())
