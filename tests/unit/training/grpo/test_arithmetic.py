"""Generated arithmetic: exact depth, right values, and nothing but this grammar."""

import ast
import contextlib
import operator
from collections import Counter
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.training.grpo.arithmetic import VALUES, evaluate, expression

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
seeds, indices = st.integers(0, 2**32 - 1), st.integers(-(10**6), 10**6)


def by_python(text: str) -> int:
    """The value according to Python's own parser, walked by hand."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            result: int = OPERATIONS[type(node.op)](value(node.left), value(node.right))
            return result
        assert isinstance(node, ast.Constant)
        assert isinstance(node.value, int)
        return node.value

    return value(ast.parse(text, mode="eval").body)


def depth_of(text: str) -> int:
    """The nesting depth of the parentheses in `text`."""
    return max(accumulate((sign == "(") - (sign == ")") for sign in text))


def parts_of(text: str) -> list[str]:
    """Every parenthesised part of `text`."""
    opened: list[int] = []
    found = []
    for place, sign in enumerate(text):
        if sign == "(":
            opened.append(place)
        elif sign == ")":
            found.append(text[opened.pop() : place + 1])
    return found


@given(seeds, indices, st.integers(0, 6))
def test_the_depth_is_the_requested_one(seed: int, index: int, depth: int) -> None:
    assert depth_of(expression(seed=seed, index=index, depth=depth)) == depth


@given(seeds, indices, st.integers(0, 6))
def test_values_are_those_of_python_and_single_digits_in_every_part(
    seed: int, index: int, depth: int
) -> None:
    text = expression(seed=seed, index=index, depth=depth)
    assert evaluate(text) == by_python(text)
    assert all(by_python(part) in VALUES for part in parts_of(text))


@given(seeds, indices)
def test_an_expression_follows_from_seed_index_and_depth(seed: int, index: int) -> None:
    assert expression(seed=seed, index=index, depth=3) == expression(seed=seed, index=index, depth=3)


def test_the_generator_makes_what_it_made_when_its_version_was_given() -> None:
    """A change here changes the meaning of every run on record: raise VERSION with it."""
    made = [expression(seed=42, index=index, depth=2) for index in (-1, 0, 1)]
    assert made == ["((0+8)-8)", "((8-4)-(8-4))", "(9-(1*7))"]


def test_all_ten_values_are_equally_frequent() -> None:
    values = Counter(evaluate(expression(seed=1, index=index, depth=3)) for index in range(2000))
    assert set(values) == set(VALUES)
    assert max(values.values()) < 1.5 * min(values.values())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a digit or a parenthesis is expected, not ''"),
        ("(1+2", "a closing parenthesis is expected, not ''"),
        ("(1/2)", "an operator is expected, not '/'"),
        ("(1+2)3", "nothing is expected before '3'"),
        ("12", "nothing is expected before '2'"),
        ("__import__('os')", "a digit or a parenthesis is expected, not '_'"),
        ("(1**2)", "a digit or a parenthesis is expected, not '*'"),
        ("٣", "a digit or a parenthesis is expected"),
    ],
)
def test_anything_else_is_no_expression(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem.replace("(", r"\(").replace("*", r"\*")):
        evaluate(text)


@given(st.text(max_size=30))
def test_evaluation_of_any_text_ends_in_a_number_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(evaluate(text), int)
