"""An API server with the objects of a healthy cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.cluster.generated import plain_eks
from tests.unit.cluster.recorded import Recorded, serving


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    with serving(plain_eks().state, tmp_path) as served:
        yield served
