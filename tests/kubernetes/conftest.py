"""One API server for all tests of this room; each test has a namespace of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster import Cluster, Namespace


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def namespace(cluster: Cluster) -> Namespace:
    return cluster.namespace(f"test-{uuid.uuid4().hex[:8]}")
