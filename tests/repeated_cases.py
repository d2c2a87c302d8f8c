"""Measure coverage in the first cases of a parametrised test, and not in those that follow.

Most cases run the same lines again, and to trace them doubles their time. The figure can only become too low.
TRAINYARD_COVER_EVERY_CASE=1 measures in all of them.
"""

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from coverage import Coverage

MEASURED = 10
"""How many cases of one test each process measures."""
_begun: Counter[str] = Counter()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    test = item.nodeid.partition("[")[0]
    _begun[test] += 1
    measuring = _measuring() if _begun[test] > MEASURED else None
    if measuring is None or os.environ.get("TRAINYARD_COVER_EVERY_CASE") == "1":
        return (yield)
    measuring.stop()
    try:
        return (yield)
    finally:
        measuring.start()


def _measuring() -> Coverage | None:
    """Return what measures the coverage of this process, if anything does."""
    return Coverage.current()
