"""`each_case`: every case runs with fresh fixtures, and a failure names its case."""

from pathlib import Path

import pytest
from tests.cases import each_case

SEEN: list[tuple[int, str]] = []


@each_case("number", [1, 2], ids=["one", "two"])
@each_case(("word",), [("a",), pytest.param("b", id="bee")])
def test_cases_multiply_and_each_has_a_folder_of_its_own(number: int, word: str, tmp_path: Path) -> None:
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text(word)
    SEEN.append((number, word))
    assert [(1, "a"), (1, "b"), (2, "a"), (2, "b")][: len(SEEN)] == SEEN


def test_all_cases_that_fail_are_named() -> None:
    @each_case("number", range(20), ids=lambda number: f"case-{number}")
    def fails(number: int) -> None:
        assert number % 2, f"{number} is even"

    with pytest.raises(pytest.fail.Exception) as failed:
        fails()
    message = str(failed.value)
    assert message.startswith("10 cases failed\ncase case-0\n")
    assert "8 is even" in message and "10 is even" not in message
    assert message.endswith("and 5 more")


def test_an_empty_table_is_no_test() -> None:
    @each_case("number", [])
    def never(number: int) -> None:
        raise AssertionError(number)

    with pytest.raises(AssertionError, match="no case"):
        never()
