"""The finished runs that situations are planted in; they are trained once."""

import pytest
from tests.integration.planted.yard import Yard, make_all


@pytest.fixture(scope="session")
def yards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Yard]:
    """Finished runs by kind; a test damages a copy only."""
    return make_all(tmp_path_factory.mktemp("yards"))


@pytest.fixture(autouse=True)
def outside_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "GITHUB_OUTPUT"):
        monkeypatch.delenv(name, raising=False)
