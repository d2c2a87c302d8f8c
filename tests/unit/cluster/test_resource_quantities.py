"""Quantities by the rules of Kubernetes: each suffix times each form of number, and other texts."""

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.cluster.resource_quantities import (
    NotAQuantityError,
    format_quantity,
    parse_quantity,
    thousandths,
)

FACTORS: dict[str, int | Fraction] = {
    "": 1, "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000),
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
    "e3": 10**3, "E3": 10**3, "e+3": 10**3, "e-3": Fraction(1, 1000), "E0": 1,
}  # fmt: skip
NUMBERS: dict[str, int | Fraction] = {
    "0": 0,
    "1.5": Fraction(3, 2),
    ".5": Fraction(1, 2),
    "5.": 5,
    "+2": 2,
    "-1": -1,
    "007": 7,
}


def test_a_quantity_is_its_number_times_its_suffix() -> None:
    for (number, value), (suffix, factor) in product(NUMBERS.items(), FACTORS.items()):
        assert parse_quantity(number + suffix) == value * factor, number + suffix
    for text in ("Ki", "n", "E", "e3", ".", "+", "-", "+Mi", ".m"):
        assert parse_quantity(text) == 0, "the API server takes them for 0"
    assert parse_quantity(" 1Ki\n") == 1024
    assert parse_quantity("1E") == 10**18, "no exponent"


def test_other_texts_are_none() -> None:
    wrong = [
        "",
        "1x",
        "1ki",
        "1K",
        "1e",
        "1e3Ki",
        "1,5",
        "1_0",
        "٣",
    ]
    for text in (*wrong, "1" * 65):
        with pytest.raises(NotAQuantityError):
            parse_quantity(text)


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_whole_numbers_are_themselves(number: int) -> None:
    assert parse_quantity(number) == parse_quantity(str(number)) == number
    assert thousandths(number) == 1000 * number


@given(st.integers(min_value=0, max_value=10**12))
def test_thousandths_round_up(nano: int) -> None:
    assert thousandths(f"{nano}n") == -(-nano // 10**6)


@pytest.mark.parametrize(
    ("amount", "resource", "text"),
    [
        ("2Ti", "memory", "2 TiB"),
        ("1536Mi", "memory", "1.5 GiB"),
        ("512", "ephemeral-storage", "512 B"),
        ("95690m", "cpu", "95.69"),
        ("8", "nvidia.com/gpu", "8"),
    ],
)
def test_amounts_are_written_for_people(amount: str, resource: str, text: str) -> None:
    assert format_quantity(thousandths(amount), resource) == text
