"""Generate and evaluate arithmetic expressions of an exact nesting depth.

    ((3+4)-(2*3))    depth 2, value 1

Every part of an expression, and the expression itself, has a value from 0 to 9. So an answer is one digit,
and guessing is right one time in ten. An expression is generated from its value, so all ten values are
equally frequent. Evaluation is a parser of this grammar only. The module knows no model and no reward.
"""

import operator
import random
from collections.abc import Iterator

VERSION = 1
"""The version of the generator. Another version makes other expressions from the same seed."""
VALUES = range(10)
_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_PAIRS = {
    (sign, value): [(left, right) for left in VALUES for right in VALUES if compute(left, right) == value]
    for sign, compute in _OPERATORS.items()
    for value in VALUES
}
"""The operands that give a value, by operator. No list is empty."""


def expression(*, seed: int, index: int, depth: int) -> str:
    """Generate expression number `index` of `seed`; `depth` 0 is a digit."""
    # A string seed is hashed by SHA-512, so it gives the same numbers on every version and machine.
    generator = random.Random(f"arithmetic {VERSION}:{seed}:{depth}:{index}")  # noqa: S311
    return _make_expression(generator.choice(VALUES), depth, generator)


def _make_expression(value: int, depth: int, generator: random.Random) -> str:
    """An expression with the value `value`. One branch has exactly `depth` - 1, the other at most that."""
    if depth == 0:
        return str(value)
    sign = generator.choice(list(_OPERATORS))
    left, right = generator.choice(_PAIRS[sign, value])
    depths = [depth - 1, generator.randrange(depth)]
    generator.shuffle(depths)
    first = _make_expression(left, depths[0], generator)
    return f"({first}{sign}{_make_expression(right, depths[1], generator)})"


def evaluate(text: str) -> int:
    """The value of an expression. Raises ValueError when `text` is not exactly one expression."""
    signs = iter(text)
    value = _value(signs, next(signs, ""))
    if rest := "".join(signs):
        raise ValueError(f"{text!r}: nothing is expected before {rest!r}")
    return value


def _value(signs: Iterator[str], sign: str) -> int:
    """The value of the digit `sign`, or of the parentheses that it opens."""
    if sign in set("0123456789"):  # `int` takes digits of other scripts too
        return int(sign)
    if sign != "(":
        raise ValueError(f"a digit or a parenthesis is expected, not {sign!r}")
    left, between = _value(signs, next(signs, "")), next(signs, "")
    if between not in _OPERATORS:
        raise ValueError(f"an operator is expected, not {between!r}")
    right = _value(signs, next(signs, ""))
    if (closing := next(signs, "")) != ")":
        raise ValueError(f"a closing parenthesis is expected, not {closing!r}")
    return int(_OPERATORS[between](left, right))
