"""Rows that are read in blocks are those that are read line by line, whatever the lines hold."""

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.errors import DamagedFileError
from trainyard.run import row_blocks
from trainyard.run.row_blocks import iterate_rows
from trainyard.run.untrusted_files import iterate_json_lines


def rows_of(path: Path) -> list[dict[str, Any]]:
    found = []
    for rows in iterate_rows(path):
        width = len(rows.names)
        starts = range(0, len(rows.values), width)
        found += [dict(zip(rows.names, rows.values[at : at + width], strict=True)) for at in starts]
    return found


def rows_alone(path: Path) -> list[dict[str, Any]]:
    return [row for row in iterate_json_lines(path) if row]


def shown(rows: list[dict[str, Any]]) -> str:
    """The rows as text; a whole number that no float can hold counts as infinite."""
    return repr(
        [
            {k: math.inf if isinstance(v, int) and abs(v) > sys.float_info.max else v for k, v in row.items()}
            for row in rows
        ]
    )


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
    '{"step": 6, "loss": 1, "loss": 2}',
    '{"step": 6, "step": 7}',
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


@given(lines=st.lists(st.sampled_from([USUAL, *ODD]), max_size=12), ends=st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_mixture_of_lines_has_the_rows_of_its_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], ends: bool
) -> None:
    path = tmp_path_factory.mktemp("rows") / "metrics.jsonl"
    path.write_text("\n".join(lines) + ("\n" if ends else ""))
    assert shown(rows_of(path)) == shown(rows_alone(path))


DAMAGES = b'{}[]:,\n\r "0123456789.eE-+tnNaIlf\\\x00\xff\t/'


@pytest.mark.parametrize("seed", range(40))
def test_no_damage_makes_rows_that_the_lines_do_not_have(seed: int, tmp_path: Path) -> None:
    """One to three bytes are replaced, inserted, removed or swapped; most break the order of the marks."""
    chosen = random.Random(seed)
    for number in range(25):
        lines = [f'{{"step":{step},"loss":{chosen.random():.3f},"time":{1e9 + step}' for step in (1, 2, 3)]
        ends = [chosen.choice(("}\n", ',"val_loss":2.5}\n')) for _ in lines]
        content = bytearray("".join(map("".join, zip(lines, ends, strict=True))).encode())
        for _ in range(chosen.choice((1, 1, 2, 3))):
            at = chosen.randrange(len(content))
            other = min(at + chosen.randrange(1, 20), len(content) - 1)
            kind = chosen.choice(("replace", "insert", "remove", "swap"))
            if kind == "swap":
                content[at], content[other] = content[other], content[at]
            else:
                content[at : at + (kind != "insert")] = (
                    b"" if kind == "remove" else bytes([chosen.choice(DAMAGES)])
                )
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(content)
        assert shown(rows_of(path)) == shown(rows_alone(path)), bytes(content)


def test_a_key_given_twice_is_noticed_beside_a_blank_before_a_colon(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 6, "loss": 1, "loss": 2}\n{"step" : 9, "loss": 1}\n')
    assert rows_of(path) == [{"step": 9, "loss": 1}]


@pytest.mark.parametrize("row", ODD)
@pytest.mark.parametrize("before", [0, 1, 63, 64, 65, 200])
def test_one_other_line_among_usual_ones(tmp_path: Path, row: str, before: int) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join([*[USUAL] * before, row, *[USUAL] * 130, ""]))
    assert shown(rows_of(path)) == shown(rows_alone(path))


def test_many_blocks_are_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "_BLOCK_BYTES", 1000)
    rows = [
        {"step": step, "loss": 1 / step, **({"val_loss": 2 / step} if step % 7 == 0 else {})}
        for step in range(1, 2000)
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert rows_of(path) == rows
    assert len(list(iterate_rows(path))) < 2000


def test_a_line_that_is_too_long_is_skipped_and_an_endless_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("_BLOCK_BYTES", 100), ("MOST_LINE_BYTES", 200), ("MOST_SKIPPED_BYTES", 5000)):
        monkeypatch.setattr(row_blocks, name, size)
    path = tmp_path / "metrics.jsonl"
    path.write_text(f"{USUAL}\n{'x' * 4000}\n{USUAL}\n")
    assert rows_of(path) == [json.loads(USUAL)] * 2
    path.write_text(f"{USUAL}\n{'x' * 9000}\n{USUAL}\n")
    with pytest.raises(DamagedFileError, match="cannot be read to its end"):
        rows_of(path)
    assert rows_of(tmp_path / "none.jsonl") == []
    with pytest.raises(DamagedFileError, match="a folder"):
        rows_of(tmp_path)
