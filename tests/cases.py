"""A rule over a table as one test: `each_case` takes a table as `pytest.mark.parametrize` does, and loops.

A parametrised case costs 11 to 22 ms of set-up, more than most pure cases compute. Every case runs; the
test fails once and names the cases that failed. It is not for cases that take long, or that need a fixture of
their own: each case has a fresh `tmp_path`, `monkeypatch`, `capsys` and `caplog`, and shares the others.
"""

import functools
import inspect
import itertools
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

Test: TypeAlias = Callable[..., None]
Ids: TypeAlias = Iterable[object] | Callable[[Any], object] | None

# More failures than these are counted only: they mostly have one reason.
_SHOWN = 5


def each_case(
    names: str | Sequence[str], values: Iterable[Any], *, ids: Ids = None
) -> Callable[[Test], Test]:
    """Run the test for each of the values, in one test. Several of these decorators multiply."""
    split = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    one = isinstance(names, str) and len(split) == 1
    chosen = [*values]
    labels = [*map(ids, chosen)] if callable(ids) else [*ids] if ids is not None else [None] * len(chosen)
    table = []
    for value, label in zip(chosen, labels, strict=True):
        arguments = [value] if one else [*value]
        if hasattr(value, "marks"):  # pytest.param
            assert not value.marks, "a case with a mark needs pytest.mark.parametrize"
            arguments, label = [*value.values], label or value.id
        case = dict(zip(split, arguments, strict=True))
        table.append((str(label or ", ".join(f"{name}={each!r:.100}" for name, each in case.items())), case))
    return lambda test: _looped(test, table)


def _looped(test: Test, table: list[tuple[str, dict[str, Any]]]) -> Test:
    body = getattr(test, "body_of_cases", test)
    tables = [table, *getattr(test, "tables_of_cases", [])]
    given = {name for each in tables for _, case in each[:1] for name in case}

    @functools.wraps(body)
    def run(**fixtures: Any) -> None:
        failures = []
        for number, parts in enumerate(itertools.product(*tables)):
            case = {name: value for _, part in parts for name, value in part.items()}
            with ExitStack() as stack:
                fresh = _fresh(fixtures, number, stack)
                try:
                    body(**fresh, **case)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 (collected, and raised below)
                    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                    shown = "".join(traceback.format_exception(error))
                    failures.append(f"case {' · '.join(label for label, _ in parts)}\n{shown}")
        if failures:
            more = [f"and {len(failures) - _SHOWN} more"] if len(failures) > _SHOWN else []
            pytest.fail(
                "\n".join([f"{len(failures)} cases failed", *failures[:_SHOWN], *more]), pytrace=False
            )
        assert tables and all(tables), "the table has no case"

    signature = inspect.signature(body)
    kept = [each for name, each in signature.parameters.items() if name not in given]
    vars(run).update(
        __signature__=signature.replace(parameters=kept), body_of_cases=body, tables_of_cases=tables
    )
    return run


def _fresh(fixtures: Mapping[str, Any], number: int, stack: ExitStack) -> dict[str, Any]:
    """Return the fixtures as a case of its own would have them."""
    fresh = dict(fixtures)
    for name, value in fixtures.items():
        if name == "tmp_path":
            folder: Path = value / str(number)
            folder.mkdir()
            fresh[name] = folder
        elif name == "monkeypatch":
            fresh[name] = stack.enter_context(pytest.MonkeyPatch.context())
        elif name == "capsys":
            value.readouterr()
        elif name == "caplog":
            value.clear()
    return fresh
