"""Arithmetic that is easy to check: expressions of an exact nesting depth, and their values.

    ((3+4)-(2*3))    depth 2, value 1

Every part of an expression has a value from 0 to 9, and so has the whole: an answer is one digit, and without
any arithmetic one in ten is right. Expressions are made from their value down, so all ten are equally
frequent. Evaluation is a parser of this grammar and nothing else. It knows no model and no reward.
"""

import random
from collections.abc import Iterator

VERSION = 1
"""Of the generator: another one makes other expressions of the same seed."""
VALUES = range(10)
OPERATORS = "+-*"
_PAIRS = {
    (operator, value): [
        (left, right)
        for left in VALUES
        for right in VALUES
        if {"+": left + right, "-": left - right, "*": left * right}[operator] == value
    ]
    for operator in OPERATORS
    for value in VALUES
}
"""The operands that give a value, by operator; there are some for each."""


def expression(*, seed: int, index: int, depth: int) -> str:
    """Expression number `index` of those that `seed` gives; `depth` 0 is a digit."""
    # A string seeds by SHA-512 of its bytes, on every version and machine alike.
    generator = random.Random(f"arithmetic {VERSION}:{seed}:{depth}:{index}")  # noqa: S311
    return _made(generator.choice(VALUES), depth, generator)


def _made(value: int, depth: int, generator: random.Random) -> str:
    """An expression of exactly `depth` that is worth `value`; the other branch is as deep or less deep."""
    if depth == 0:
        return str(value)
    operator = generator.choice(OPERATORS)
    left, right = generator.choice(_PAIRS[operator, value])
    depths = [depth - 1, generator.randrange(depth)]
    generator.shuffle(depths)
    return f"({_made(left, depths[0], generator)}{operator}{_made(right, depths[1], generator)})"


def depth_of(text: str) -> int:
    """How deep the parentheses of `text` are nested."""
    deepest = depth = 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        deepest = max(deepest, depth)
    return deepest


def evaluate(text: str) -> int:
    """The value of an expression. Raises ValueError when `text` is not one from end to end."""
    signs = iter(text)
    value = _value(signs, next(signs, ""))
    if rest := "".join(signs):
        raise ValueError(f"{text!r}: nothing is expected before {rest!r}")
    return value


def _value(signs: Iterator[str], sign: str) -> int:
    """The value of the digit `sign`, or of the parentheses that it opens."""
    if sign in set("0123456789"):
        return int(sign)
    if sign != "(":
        raise ValueError(f"a digit or a parenthesis is expected, not {sign!r}")
    left, operator = _value(signs, next(signs, "")), next(signs, "")
    if operator not in set(OPERATORS):
        raise ValueError(f"an operator is expected, not {operator!r}")
    right = _value(signs, next(signs, ""))
    if (closing := next(signs, "")) != ")":
        raise ValueError(f"a closing parenthesis is expected, not {closing!r}")
    return {"+": left + right, "-": left - right, "*": left * right}[operator]
