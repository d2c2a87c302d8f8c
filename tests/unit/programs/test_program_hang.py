"""When a program counts as hung: by rows, output and the mark of another node, on the test's clock."""

import itertools
import json
import time
from pathlib import Path

import pytest
from tests.cases import each_case

from trainyard.programs.program_hang import HangRule

LIMIT = 120.0
"""Seconds; the rule takes minutes."""


def rule(logs: Path, *, number: int = 0, minutes: float | None = LIMIT / 60) -> HangRule:
    return HangRule(logs, minutes, number=number)


@each_case("courses", list(itertools.product(("rows", "output", "nothing"), repeat=4)))
def test_it_hangs_when_neither_rows_nor_output_came_for_the_limit(
    courses: tuple[str, ...], tmp_path: Path
) -> None:
    """Each minute has rows, output or nothing; before the first row nothing is judged."""
    hang, last, now = rule(tmp_path), None, 1000.0
    for minute, what in enumerate(courses, start=1):
        now = 1000.0 + 60.0 * minute
        if what == "rows":
            hang.note_rows(minute, now)
            last = now
        elif what == "output":
            hang.note_output(now)
            last = now if last is not None else None
        expected = bool(hang.noticed) or (last is not None and now - last >= LIMIT)
        assert hang.is_hung(now) is expected
    assert hang.is_hung(now + LIMIT) is (last is not None)


def test_without_a_limit_nothing_is_judged(tmp_path: Path) -> None:
    hang = rule(tmp_path, minutes=None)
    hang.note_rows(1, 0.0)
    assert not hang.is_hung(1e9)
    (tmp_path / "hang-suspected").write_text(json.dumps({"time": time.time() + 60}))
    assert not hang.is_hung(1e9)


@pytest.mark.parametrize("noticing", [0, 1])
def test_every_node_ends_by_the_mark_of_the_one_that_noticed(noticing: int, tmp_path: Path) -> None:
    both = [rule(tmp_path, number=number) for number in range(2)]
    both[noticing].note_rows(1, 0.0)
    assert not both[1 - noticing].is_hung(LIMIT)
    assert both[noticing].is_hung(LIMIT)
    assert both[1 - noticing].is_hung(1.0)
    assert both[0].noticed == both[1].noticed
    assert both[0].noticed["node"] == noticing


@pytest.mark.parametrize("mark", ["old", "broken", "no time", "a list"])
def test_a_mark_of_an_earlier_start_or_without_sense_does_not_count(mark: str, tmp_path: Path) -> None:
    text = {"old": '{"time": 1.0}', "broken": "{", "no time": "{}", "a list": "[1]"}[mark]
    (tmp_path / "hang-suspected").write_text(text)
    assert not rule(tmp_path, number=1).is_hung(0.0)
    assert (tmp_path / "hang-suspected").exists()
    assert not rule(tmp_path).is_hung(0.0)
    assert not (tmp_path / "hang-suspected").exists(), "the first node removes what an earlier start left"


def test_stacks_are_what_the_log_got_after_the_hang_was_noticed(tmp_path: Path) -> None:
    (tmp_path / "node-0.log").write_text("step 1\n")
    hang = rule(tmp_path)
    hang.note_rows(1, 0.0)
    assert hang.is_hung(LIMIT)
    with (tmp_path / "node-0.log").open("a") as log:
        log.write("Fatal Python error: Aborted\n")
    hang.keep_stacks()
    assert (tmp_path / "hang-node-0.txt").read_text() == "Fatal Python error: Aborted\n"
    assert hang.describe(7).startswith("Step 8: nothing moved for 120.0 s")
    assert hang.describe(7).endswith("The stacks: logs/hang-node-0.txt")
