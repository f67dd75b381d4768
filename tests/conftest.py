"""Settings of all tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.redis.server import RedisServer

# How long one example takes says how busy the machine is; pytest-timeout is for tests that hang. Examples are the same
# in every run, so that a test fails for what was changed; `pytest --hypothesis-profile explore` looks for new ones.
BUSY = [HealthCheck.too_slow]  # it measures the machine, too
settings.register_profile("any machine", deadline=None, derandomize=True, suppress_health_check=BUSY)
settings.register_profile("explore", deadline=None, max_examples=2_000, suppress_health_check=BUSY)
settings.load_profile("any machine")

STARTS_REAL_PARTS = {"stack", "envoy", "redis", "browser", "lab"}  # fixtures


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    for item in items:
        if STARTS_REAL_PARTS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.stack)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A real one, empty."""
    server = RedisServer(tmp_path)
    server.start()
    try:
        yield server
    finally:
        server.kill()
