"""Settings of all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.redis.server import RedisServer

# How long one example takes says how busy the machine is; pytest-timeout is for tests that hang. Examples are the same
# in every run, so that a test fails for what was changed; `pytest --hypothesis-profile explore` looks for new ones.
BUSY = [HealthCheck.too_slow]  # it measures the machine, too
settings.register_profile("any machine", deadline=None, derandomize=True, suppress_health_check=BUSY)
settings.register_profile("explore", deadline=None, max_examples=2_000, suppress_health_check=BUSY)
settings.load_profile("any machine")

STARTS_REAL_PARTS = {"stack", "envoy", "redis", "browser", "lab"}  # fixtures
LONGEST_FIRST = ("lab", "stack")  # rooms: of several workers, one that began them last would be waited for


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if STARTS_REAL_PARTS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.stack)
    items.sort(key=lambda item: _room(item) not in LONGEST_FIRST)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    return ByFile(config, log)


class ByFile(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """One worker runs a whole file, and one all of the lab's: its servers take gigabytes and both cores."""

    def _split_scope(self, nodeid: str) -> str:
        return "lab" if nodeid.startswith("tests/lab/") else super()._split_scope(nodeid)


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
