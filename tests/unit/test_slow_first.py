"""The order of the tests: each exactly once, slow ones at the front of all rows but the last."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.slow_first import slow_first

TESTS = st.lists(st.tuples(st.booleans(), st.sampled_from(["a", "b", "c", "d"])), max_size=60)


@given(TESTS, st.integers(1, 4))
def test_each_test_is_run_once_by_any_number_of_processes(
    tests: list[tuple[bool, str]], processes: int
) -> None:
    assert sorted(slow_first(tests, processes)) == [*range(len(tests))]


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_slow_ones_begin_all_rows_but_the_last(processes: int) -> None:
    tests = [(number % 10 == 0, f"file {number}") for number in range(600)]
    order = slow_first(tests, processes)
    row = 600 // processes
    each = 60 // (processes - 1)
    for place in range(processes - 1):
        front = order[place * row : place * row + each]
        assert all(tests[number][0] for number in front)
    assert not any(tests[number][0] for number in order[-row:])


def test_one_process_keeps_the_order_of_the_files() -> None:
    assert slow_first([(False, "a"), (True, "b"), (False, "c")], 1) == [0, 1, 2]
