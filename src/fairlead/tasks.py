"""Asyncio tasks that end together: several at once, and one that depends on others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Never, TypeVar

T = TypeVar("T")


async def all_of(*works: Coroutine[Any, Any, None]) -> None:
    """Run `works` concurrently; the first error ends them all and is raised as it is, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def while_running(work: Coroutine[Any, Any, T], *ends: Coroutine[Any, Any, Never]) -> T:
    """The result of `work`, unless one of `ends` raises first."""
    task = asyncio.ensure_future(work)
    others = [asyncio.ensure_future(end) for end in ends]
    try:
        done, _ = await asyncio.wait([task, *others], return_when=asyncio.FIRST_COMPLETED)
        for other in others:
            if other in done:
                other.result()
        return await task
    finally:
        for pending in (task, *others):
            pending.cancel()
        await asyncio.gather(task, *others, return_exceptions=True)


async def forever() -> Never:
    """Wait until cancelled."""
    while True:
        await asyncio.Event().wait()
