"""The order of the tests: each exactly once, slow ones at the front of all rows but the last."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.slow_first import slow_first


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 4))
def test_each_test_is_run_once_by_any_number_of_processes(are_slow: list[bool], processes: int) -> None:
    assert sorted(slow_first(are_slow, processes)) == [*range(len(are_slow))]


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_slow_ones_begin_all_rows_but_the_last(processes: int) -> None:
    are_slow = [number % 10 == 0 for number in range(600)]
    order = slow_first(are_slow, processes)
    row = 600 // processes
    each = 60 // (processes - 1)
    for place in range(processes - 1):
        front = order[place * row : place * row + each]
        assert all(are_slow[number] for number in front)
    assert not any(are_slow[number] for number in order[-row:])


def test_one_process_keeps_the_order_of_the_files() -> None:
    assert slow_first([False, True, False], 1) == [0, 1, 2]
