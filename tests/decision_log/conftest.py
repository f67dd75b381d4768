"""One object store for the tests that ask it, and the environment in which it is found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.decision_log.object_store import ObjectStore


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        yield running
