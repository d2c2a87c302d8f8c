"""The order of the tests when several processes share them: slow ones first, on all processes but one.

pytest-xdist gives each process a row of neighbours and moves tests from long rows to idle processes. Slow
tests mostly wait, and quick ones compute; side by side they use the processors, and no slow one is left over.
"""

import os
from collections.abc import Sequence

import pytest

SLOW = ("slow", "act")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [any(map(item.get_closest_marker, SLOW)) for item in items]
    items[:] = [items[number] for number in slow_first(slow, processes)]


def slow_first(are_slow: Sequence[bool], processes: int) -> list[int]:
    """Return the order of the tests by their numbers; unchanged for one process."""
    if processes == 1:
        return [*range(len(are_slow))]
    slow = [number for number, is_slow in enumerate(are_slow) if is_slow]
    quick = iter([number for number, is_slow in enumerate(are_slow) if not is_slow])
    order: list[int] = []
    for place in range(processes):
        length = (len(are_slow) - len(order)) // (processes - place)  # as pytest-xdist divides them
        front = slow[place :: processes - 1] if place < processes - 1 else []
        order += front
        order += [number for _, number in zip(range(length - len(front)), quick, strict=False)]
    return [*order, *quick]
