from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fairlead.core.endpoint import Endpoint
from tests.core.world import make_endpoint
from tests.engines.world import FakeEngine


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    fake = FakeEngine()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def endpoint(engine: FakeEngine) -> Endpoint:
    return make_endpoint(engine.address, "m")
