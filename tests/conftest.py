"""What every test starts from: an active virtual environment, a logger that no earlier test has set up."""

import logging
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def untouched_logger() -> Iterator[None]:
    """Scripts set up the logger of the library once a process; here many run in one."""
    logger = logging.getLogger("trainyard")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture(autouse=True)
def active_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands that are proposed start with `scripts/`, however the tests were started."""
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
