"""A profile asks real endpoints, as a cascade does. Replicas are simulated once for all tests: most of their time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from fairlead.tools.plan import workload
from fairlead.tools.plan.replica_load import simulate_curve
from tests.cascade.conftest import endpoint

__all__ = ["endpoint"]


@pytest.fixture(scope="package", autouse=True)
def simulated_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workload, "simulate_curve", cache(simulate_curve))
        yield
