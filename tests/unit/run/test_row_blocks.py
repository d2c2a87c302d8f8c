"""Rows that are read in blocks are those that are read line by line, whatever the lines hold."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cases import each_case

from trainyard.errors import DamagedFileError
from trainyard.run import row_blocks
from trainyard.run.row_blocks import iterate_rows
from trainyard.run.untrusted_files import iterate_json_lines


@pytest.fixture(params=[1 << 18, 60], ids=["one block", "a block each line or two"], autouse=True)
def _sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks make the first line known, so that the later ones are read as tables."""
    monkeypatch.setattr(row_blocks, "_BLOCK_BYTES", request.param)


def rows_of(path: Path) -> list[dict[str, Any]]:
    found = []
    for rows in iterate_rows(path):
        width = len(rows.names)
        starts = range(0, len(rows.values), width)
        some = [dict(zip(rows.names, rows.values[at : at + width], strict=True)) for at in starts]
        if isinstance(rows.values, np.ndarray):  # NaN: the row lacks the key
            some = [{name: value for name, value in row.items() if not math.isnan(value)} for row in some]
        found += [row for row in some if row]
    return found


def shown(rows: list[dict[str, Any]]) -> str:
    """The rows as text, their keys sorted and their numbers floats; what no float holds is infinite."""

    def number(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        return math.inf if abs(value) > sys.float_info.max else float(value)

    return repr([{key: number(row[key]) for key in sorted(row)} for row in rows])


USUAL = '{"step": 1, "loss": 2.5, "mfu": 1e-05}'
ODD = (
    '{"step": 2, "loss": 2.5, "mfu": 1e-05, "val_loss": 3}',
    '{"step": 2, "mfu": 0.5, "loss": 9}',
    '{"loss": 7, "step": 3, "mfu": 1}',
    '{"step": 4}',
    '{"step": 5, "loss": NaN, "mfu": 1}',
    '{"step": 5, "loss": null, "mfu": 1}',
    '{"step": 5, "loss": true, "mfu": 1}',
    '{"step": 5, "loss": "2.5", "mfu": 1}',
    '{"step": 5, "loss": [1, 2], "mfu": 1}',
    '{"step": 5, "loss": {"a": 1}, "mfu": 1}',
    '{"step": 6, "loss": 1{"step": 6, "loss": 1, "mfu": 2}',
    '{"step": 6, {"step": 6, "loss": 1, "mfu": 2}',
    '{"step": 6, "loss"',
    '{"step": 8, "lo:ss": 1, "mfu": 2}',
    '{"step": 8, "l\\u0041": 1, "mfu": 2}',
    '{"step" : 9 ,"loss":1,"mfu":  2} ',
    f'{{"step": {"9" * 400}, "loss": 1, "mfu": 2}}',
    "[1, 2]",
    "7",
    "{}",
    "",
    "nothing",
    '"step", 1, "loss", 2, "mfu", 3',
)


@given(
    lines=st.lists(st.sampled_from([USUAL, *ODD]), max_size=12),
    ends=st.booleans(),
    size=st.sampled_from([1, 60, 200, 1 << 18]),
)
@settings(
    max_examples=4 * settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_mixture_of_lines_has_the_rows_of_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], ends: bool, size: int
) -> None:
    monkeypatch.setattr(row_blocks, "_BLOCK_BYTES", size)
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(lines) + ("\n" if ends else ""))
    assert shown(rows_of(path)) == shown([row for row in iterate_json_lines(path) if row])


NAMES = ("lo:ss", 'lo"ss', "lo\\ss", "lo\nss", "lo\u00e9ss", "", "train/loss", "lo ss", "{loss}")


@each_case("name", [*NAMES, None])
def test_any_name_is_read(name: str | None, tmp_path: Path) -> None:
    """Names that the table cannot have, or more of them than it has, are read line by line."""
    count = 40 if name is not None else 2 * row_blocks._MOST_NAMES
    rows = [{"step": float(n), f"figure_{n}" if name is None else name: n / 2} for n in range(count)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert shown(rows_of(path)) == shown(rows)


def test_most_rows_of_a_long_file_are_read_as_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "_BLOCK_BYTES", 1000)
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{USUAL}\n{ODD[0]}\n" * 4000)
    found = list(iterate_rows(path))
    assert sum(not isinstance(rows.values, np.ndarray) for rows in found) < len(found) / 10


def test_a_line_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("_BLOCK_BYTES", 100), ("MOST_LINE_BYTES", 200)):
        monkeypatch.setattr(row_blocks, name, size)
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{USUAL}\n{'x' * 4000}\n{USUAL}\n")
    with pytest.raises(DamagedFileError, match="a line of more than 200 bytes"):
        rows_of(path)
    assert rows_of(tmp_path / "none.jsonl") == []
    with pytest.raises(DamagedFileError, match="a folder"):
        rows_of(tmp_path)
