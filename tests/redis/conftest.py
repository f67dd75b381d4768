from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.redis.server import RedisServer
from tests.redis.world import Sidecar, until

Join = Callable[..., Any]


@pytest.fixture
async def join(redis: RedisServer) -> AsyncIterator[Join]:
    """`await join()` is one more sidecar over `redis`, connected. When all have stopped, no task is left."""
    before = asyncio.all_tasks()
    sidecars: list[Sidecar] = []

    async def start(**parts: Any) -> Sidecar:
        sidecar = Sidecar(redis.url, **parts)
        sidecars.append(sidecar)
        await until(sidecar.up, "the sidecar is connected to Redis")
        return sidecar

    yield start
    for sidecar in sidecars:
        await sidecar.store.stop()
    assert {task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()} == set()
