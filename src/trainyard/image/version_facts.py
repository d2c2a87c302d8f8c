"""Facts about compatible versions: rows of image/facts/*.yaml, and arithmetic on versions.

A row has its source and its date; what no row states is unknown, and no rule judges it.
"""

import re
from collections.abc import Iterator
from datetime import date
from functools import lru_cache
from importlib.resources import files
from typing import Any

from trainyard.config.yaml_reader import parse_yaml

Version = tuple[int, ...]

MOST_DAYS = 180
"""The linter calls a family of rows old if its newest row is older than this many days."""
# Families of rows that new releases make old: the table, and a key that only they have.
RENEWED = (
    *(("torch", "pypi_cuda"), ("torch", "cuda"), ("containers", "cuda"), ("containers", "dlc")),
    *(("cuda", "architecture"), ("cuda", "toolkit"), ("efa", "libfabric"), ("pairs", "below")),
    ("published_files", "key"),
)


@lru_cache
def rows(table: str) -> tuple[dict[str, Any], ...]:
    """Return the rows of a table."""
    file = files("trainyard.image").joinpath(f"facts/{table}.yaml")
    return tuple(parse_yaml(file.read_bytes(), str(file))["rows"])


def rows_with(table: str, *keys: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table that have all these keys."""
    return (row for row in rows(table) if all(key in row for key in keys))


def fact(table: str, key: str) -> Any:
    """Return what the first row of a table that has this key states for it."""
    return next(rows_with(table, key))[key]


def row_of(table: str, **facts: str) -> dict[str, Any]:
    """Return the first row with these values; empty if there is none."""
    return next((row for row in rows(table) if all(row.get(key) == facts[key] for key in facts)), {})


def torch_row(torch: Version) -> dict[str, Any]:
    """Return the row of torch's minor release; empty if there is none."""
    return row_of("torch", torch=version_text(minor(torch)))


def torch_builds(torch: Version) -> list[Version]:
    """Return the CUDA releases that a torch is built with; empty if unknown."""
    return [version(cuda) for cuda in torch_row(torch).get("cuda", ())]


def oldest_driver(cuda: Version) -> Version:
    """Return the oldest Linux driver for a CUDA release; () if unknown."""
    return version(row_of("cuda", cuda=str(cuda[0])).get("driver", "")) if cuda else ()


def oldest_cuda(architecture: str) -> Version:
    """Return the first CUDA that compiles for an architecture such as sm_90; () if unknown."""
    return version(row_of("cuda", architecture=architecture).get("cuda", ""))


def old_tables(today: date) -> list[str]:
    """Return the families of rows whose newest row is too old on this day, such as `torch (pypi_cuda)`."""
    days = {(table, key): max(row["date"] for row in rows_with(table, key)) for table, key in RENEWED}
    ages = {f"{table} ({key})": today - date.fromisoformat(day) for (table, key), day in days.items()}
    return [name for name, age in ages.items() if age.days > MOST_DAYS]


def version(text: str) -> Version:
    """The leading numbers, of 9 digits at most: `2.5.1+cu124` gives (2, 5, 1), `2.7.0a0` gives (2, 7, 0)."""
    found = re.match(r"\d{1,9}(?!\d)(?:\.\d{1,9}(?!\d))*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def minor(found: Version) -> Version:
    """Return the first two numbers of a version."""
    return found[:2]


def version_text(found: Version) -> str:
    """Return the text of a version."""
    return ".".join(str(number) for number in found)


def same_prefix(one: Version, other: Version) -> bool:
    """Return whether two versions agree as far as both are known."""
    return all(number == same for number, same in zip(one, other, strict=False))
