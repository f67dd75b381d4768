from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.redis.world import RedisServer, Sidecar, until

Join = Callable[..., Any]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    try:
        yield server
    finally:
        server.kill()


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
