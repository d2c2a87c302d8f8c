"""Quantities as Kubernetes writes them: `100m`, `1.5Gi`, `1e3`, `107374182400m`.

The rules are those of k8s.io/apimachinery `pkg/api/resource`: a sign, digits with at most one point, and one
suffix, which is binary (Ki to Ei), decimal (n, u, m, k to E) or an exponent (e3, E3). A number without digits
is 0, as the API server has it.
"""

import re
from fractions import Fraction
from functools import lru_cache

_SUFFIXES = {
    **{name: Fraction(1000) ** power for power, name in enumerate(("n", "u", "m", "", *"kMGTPE"), start=-3)},
    **{f"{name}i": Fraction(1024) ** power for power, name in enumerate("KMGTPE", start=1)},
}
_FORM = re.compile(
    r"(?P<number>[+-]?\d*\.?\d*)"
    r"(?:[eE](?P<exponent>[+-]?\d{1,4})|(?P<suffix>[KMGTPE]i|[numkMGTPE]?))",
    re.ASCII,
)
_LONGEST = 64
"""In characters; the largest amount that the API server keeps has 19 digits."""


class NotAQuantityError(ValueError):
    """The text is not a Kubernetes quantity."""


@lru_cache(maxsize=4096)
def parse_quantity(text: str | int) -> Fraction:
    """The exact amount. Raises NotAQuantityError."""
    plain = str(text).strip()
    match = _FORM.fullmatch(plain) if 0 < len(plain) <= _LONGEST else None
    if match is None:
        raise NotAQuantityError(f"{str(text)[:_LONGEST]!r} is not a quantity such as 8, 100m, 1.5Gi or 1e3")
    digits = match["number"].rstrip(".")
    number = Fraction(digits if digits.strip("+-") else 0)
    if match["exponent"] is not None:
        return number * Fraction(10) ** int(match["exponent"])
    return number * _SUFFIXES[match["suffix"] or ""]


@lru_cache(maxsize=4096)
def thousandths(text: str | int) -> int:
    """The amount in thousandths, rounded up, as the scheduler counts processors. Raises NotAQuantityError."""
    exact = parse_quantity(text) * 1000
    return -(-exact.numerator // exact.denominator)


def format_quantity(amount: int, resource: str) -> str:
    """An amount in thousandths of `resource` for people: `1.5 TiB`, `95.69`, `8`."""
    if resource == "memory" or resource.startswith("hugepages-") or resource.endswith("storage"):
        return _binary(amount / 1000)
    return f"{amount / 1000:.2f}".rstrip("0").rstrip(".")


def _binary(amount: float) -> str:
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(amount) >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.1f}".removesuffix(".0") + f" {units[0]}"
