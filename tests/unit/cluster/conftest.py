"""An API server with the objects of a healthy cluster."""

from collections.abc import Iterator

import pytest
from tests.unit.cluster.generated import plain_eks
from tests.unit.cluster.recorded import Recorded, serving


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    with serving(plain_eks().state) as served:
        yield served
