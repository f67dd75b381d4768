"""A simulated engine on a free port, fast enough that no test waits, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from fairlead.tools.simulate.parameters import EngineParameters
from fairlead.tools.simulate.server import EngineOptions, RunningEngine, running_engine

FAST = EngineParameters(
    prefill_ms_per_token=0.001, decode_ms_per_step=1.0, decode_ms_per_sequence=0.0, step_overhead_ms=0.1
)

WITHIN_S = 60.0  # ends a test that would hang; what a test waits for comes in milliseconds


@pytest.fixture
async def engine() -> AsyncIterator[RunningEngine]:
    async with running_engine(EngineOptions(model="m", parameters=FAST)) as running:
        yield running


def client_of(engine: RunningEngine) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{engine.address}", timeout=WITHIN_S)


@pytest.fixture
async def client(engine: RunningEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(engine) as made:
        yield made
