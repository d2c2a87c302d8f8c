"""What every test starts from: a logger that no earlier test has set up."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def untouched_logger() -> Iterator[None]:
    """Scripts set up the logger of the library once a process; here many run in one."""
    logger = logging.getLogger("trainyard")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before
