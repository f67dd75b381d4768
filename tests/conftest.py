"""Settings of all tests."""

from __future__ import annotations

from collections.abc import Iterator
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
LONGEST_FIRST = ("lab", "stack")  # rooms; a worker that began one of them last would be waited for


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what starts real parts, and what one of several workers runs alone (`pytest -n`): a file, or all of the lab.

    The lab's servers take gigabytes and both cores: two of its files at once would each be slower than in turn.
    """
    if STARTS_REAL_PARTS.intersection(getattr(item, "fixturenames", ())):
        item.add_marker(pytest.mark.stack)
    item.add_marker(pytest.mark.xdist_group("lab" if _room(item) == "lab" else item.nodeid.partition("::")[0]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _room(item) not in LONGEST_FIRST)


def _room(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A real one, empty."""
    server = RedisServer(tmp_path)
    server.start()
    try:
        yield server
    finally:
        server.kill()
