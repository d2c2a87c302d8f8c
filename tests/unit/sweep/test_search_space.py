"""The values of a sweep's keys, as they are written on the command line."""

import math

import pytest

from trainyard.errors import ConfigError
from trainyard.sweep.search_space import Choices, Range, combinations, format_number, read_space


def test_each_form_is_read() -> None:
    assert read_space(
        ["a.b=8,16", "c=0.1..0.5", "d=log:1e-4..1e-2", "e=-3..4", "f=1.0..4", "g=adamw", "h=[1,2]..."]
    ) == (
        Choices("a.b", ("8", "16")),
        Range("c", 0.1, 0.5, is_log=False, is_whole=False),
        Range("d", 1e-4, 1e-2, is_log=True, is_whole=False),
        Range("e", -3, 4, is_log=False, is_whole=True),
        Range("f", 1.0, 4.0, is_log=False, is_whole=False),
        Choices("g", ("adamw",)),
        Choices("h", ("[1", "2]...")),
    )


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["training.seed"], "write KEY=A,B,C"),
        (["=1,2"], "write KEY=A,B,C"),
        (["a="], "write KEY=A,B,C"),
        (["a=1,,2"], "empty or given twice"),
        (["a=1,2,1"], "empty or given twice"),
        (["a=x..y"], "a number at each end"),
        (["a=2..1"], "two finite numbers, the smaller one first"),
        (["a=1..1"], "two finite numbers, the smaller one first"),
        (["a=0..inf"], "two finite numbers, the smaller one first"),
        (["a=nan..1"], "two finite numbers, the smaller one first"),
        (["a=log:0..1"], "begins above 0"),
        (["a=1,2", "a=3..4"], "--space a: given twice"),
    ],
)
def test_what_is_no_space_is_refused_with_the_form(texts: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_space(texts)


@pytest.mark.parametrize("value", [1e-5, 0.1 + 0.2, 3.0, -7.0, 1e16, 2**0.5])
def test_a_number_is_read_back_exactly(value: float) -> None:
    assert math.isclose(float(format_number(value)), value, rel_tol=0, abs_tol=0)


def test_a_grid_has_every_combination_and_no_range() -> None:
    assert combinations(read_space(["a=1,2", "b=x,y"])) == [
        {"a": "1", "b": "x"},
        {"a": "1", "b": "y"},
        {"a": "2", "b": "x"},
        {"a": "2", "b": "y"},
    ]
    with pytest.raises(ConfigError, match="list those of a, c"):
        combinations(read_space(["a=1..2", "b=x", "c=0.1..0.2"]))
