"""The order of the tests when several processes share them: slow ones first, on all processes but one.

pytest-xdist gives each process a row of neighbours and moves tests from long rows to idle processes. Slow
tests mostly wait, and quick ones compute; side by side they use the processors, and no slow one is left over.
"""

import os
from collections.abc import Sequence
from itertools import groupby

import pytest

SLOW = ("slow", "act")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    files = [
        (any(map(item.get_closest_marker, SLOW)), item.nodeid.partition("::")[0])
        for item in items  # the tests of a file share fixtures and stay together
    ]
    items[:] = [items[number] for number in slow_first(files, processes)]


def slow_first(tests: Sequence[tuple[bool, str]], processes: int) -> list[int]:
    """Return the order of `tests`, each whether it is slow and its file; unchanged for one process."""
    if processes == 1:
        return [*range(len(tests))]
    slow = [number for number, (is_slow, _) in enumerate(tests) if is_slow]
    quick = iter([number for number, (is_slow, _) in enumerate(tests) if not is_slow])
    rows: list[list[int]] = [[] for _ in range(processes)]
    for _, same in groupby(slow, key=lambda number: tests[number][1]):
        min(rows[:-1], key=len).extend(same)
    order: list[int] = []
    for place, row in enumerate(rows):
        length = (len(tests) - len(order)) // (processes - place)  # as pytest-xdist divides them
        order += row
        order += [number for _, number in zip(range(length - len(row)), quick, strict=False)]
    return order
