"""Waiting for what comes from elsewhere: from another process, or a task that sets no event."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

Condition = Callable[[], Any]  # plain, or a coroutine function
WITHIN_S = 60.0  # ends a test that would hang; what a test waits for comes in milliseconds


async def until(condition: Condition, what: str = "", within_s: float = WITHIN_S) -> None:
    """Wait until `condition` is true."""
    try:
        async with asyncio.timeout(within_s):
            while True:
                found = condition()
                if await found if inspect.isawaitable(found) else found:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not so within {within_s:g} s: {what or condition}") from None
