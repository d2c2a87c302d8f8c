"""An API server that stores what it is given."""

from collections.abc import Iterator

import pytest
from tests.unit.gateways.kubernetes.memory_cluster import MemoryCluster, memory_cluster


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    with memory_cluster() as cluster:
        yield cluster
