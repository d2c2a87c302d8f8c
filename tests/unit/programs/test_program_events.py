"""What a program reports is read as it was written, the rest is counted; and when it counts as hung."""

import itertools
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case

from trainyard.programs.program_events import (
    LoggedFigures,
    ObservedFact,
    ProgramEvent,
    ProgramEvents,
    TrainingSpan,
    WrittenCheckpoint,
    parse_event,
)
from trainyard.programs.program_hang import HangRule
from trainyard.programs.sources import Source

EVENTS: list[tuple[dict[str, Any], ProgramEvent]] = [
    ({"event": "begin", "step": 3, "steps": 9, "time": 5.0}, TrainingSpan(3, 9, 5.0)),
    ({"event": "begin", "step": 0, "steps": 9.0}, TrainingSpan(0, 9)),
    (
        {"event": "row", "step": 4, "loss": 2.5, "lr": 0.1, "note": "text", "time": 6},
        LoggedFigures(4, {"loss": 2.5, "lr": 0.1}, 6),
    ),
    (
        {"event": "saved", "step": 9, "path": "/o/c-9", "files": {"a/b.pt": [3, 4]}},
        WrittenCheckpoint(9, Path("/o/c-9"), {"a/b.pt": (3, 4)}),
    ),
    ({"event": "end", "step": 9, "steps": 9}, TrainingSpan(9, 9, has_ended=True)),
    (
        {"event": "row", "source": "observed", "pid": 7, "rank": 1, "step": 4, "loss": 2.5},
        LoggedFigures(4, {"loss": 2.5}, source=Source.OBSERVED, rank=1, pid=7),
    ),
    (
        {"event": "saved", "source": "observed", "pid": 7, "path": "/o/a.pt", "call": "torch.save"},
        WrittenCheckpoint(None, Path("/o/a.pt"), source=Source.OBSERVED, call="torch.save", pid=7),
    ),
    (
        {"event": "exception", "source": "observed", "pid": 7, "step": 4, "type": "ValueError"},
        ObservedFact("exception", 7, 0, {"type": "ValueError"}, 4),
    ),
]
BAD = [
    "text",
    "{}",
    '{"event": "row", "step": -1}',
    '{"event": "row", "step": true}',
    '{"event": "row", "step": 9223372036854775808}',
    '{"event": "row", "step": 1, "step": 2}',
    '{"event": "other", "step": 1}',
    '{"event": "saved", "path": "/a"}',
    '{"event": ["row"], "step": 1}',
    json.dumps({"event": "row", "step": 1, **{f"f{i}": i for i in range(2000)}}),
    json.dumps({"event": "row", "step": 1, "n" * 300: 1}),
    '{"event": "saved", "step": 1}',
    '{"event": "saved", "step": 1, "path": "relative"}',
    '{"event": "saved", "step": 1, "path": "/a\\u0000b"}',
    '{"event": "saved", "step": 1, "path": "/a", "files": []}',
    '{"event": "saved", "step": 1, "path": "/a", "files": {"../b": [1, 2]}}',
    '{"event": "saved", "step": 1, "path": "/a", "files": {"b": [1]}}',
    '{"event": "saved", "step": 1, "path": "/a", "files": {"b": [1, 99999999999999999999]}}',
    '{"event": "row", "step": 1, "loss": ' + "[" * 200 + "]" * 200 + "}",
    '{"event": "row", "step": 1, "loss"',
    "\udcff",
]


def line_of(event: dict[str, Any]) -> bytes:
    return json.dumps(event).encode() + b"\n"


@pytest.mark.parametrize(("written", "expected"), EVENTS)
def test_an_event_is_read_with_its_types(written: dict[str, Any], expected: ProgramEvent) -> None:
    assert parse_event(line_of(written)) == expected


@each_case("text", BAD)
def test_a_line_that_is_no_event_is_counted_and_the_next_is_read(tmp_path: Path, text: str) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(text.encode(errors="surrogateescape") + b"\n\n" + line_of(EVENTS[0][0]))
    events = ProgramEvents(file)
    assert (events.poll(), events.bad_lines) == ([EVENTS[0][1]], 1)


@given(st.lists(st.sampled_from(EVENTS), max_size=6), st.data())
def test_events_are_read_once_however_the_file_grows(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[dict[str, Any], ProgramEvent]], data: Any
) -> None:
    content = b"".join(line_of(event) for event, _ in written)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=4)))
    file = tmp_path_factory.mktemp("events") / "events.jsonl"
    events, found = ProgramEvents(file), []
    for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        with file.open("ab") as grows:
            grows.write(content[start:end])
        found += events.poll()
    assert (found, events.bad_lines) == ([event for _, event in written], 0)


@given(st.binary(max_size=400))
def test_any_bytes_are_skipped(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("events") / "events.jsonl"
    file.write_bytes(content + b"\n" + line_of(EVENTS[0][0]))
    assert ProgramEvents(file).poll()[-1:] == [EVENTS[0][1]]


def test_a_line_without_an_end_is_left_out_of_memory(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"x" * (40 << 20) + b"\n" + line_of(EVENTS[0][0]))
    events = ProgramEvents(file)
    assert (events.poll(), events.bad_lines) == ([EVENTS[0][1]], 1)


def test_a_file_that_was_replaced_or_shortened_is_read_from_its_start(tmp_path: Path) -> None:
    file, other = tmp_path / "events.jsonl", tmp_path / "other"
    file.write_bytes(line_of(EVENTS[0][0]) * 2)
    events = ProgramEvents(file)
    assert len(events.poll()) == 2
    other.write_bytes(line_of(EVENTS[2][0]) * 3)
    other.replace(file)
    assert events.poll() == [EVENTS[2][1]] * 3
    file.write_bytes(line_of(EVENTS[3][0]))
    assert events.poll() == [EVENTS[3][1]]


def test_what_is_no_readable_file_has_no_events(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    assert [ProgramEvents(tmp_path / name).poll() for name in ("pipe", "link", "missing", ".")] == [[]] * 4


def test_figures_get_the_names_of_the_run_directory() -> None:
    figures = {"loss": 2.0, "lr": 0.1, "grad_norm": math.inf, "eval_loss": 3.0, "num_tokens": 7, "reward": 1}
    assert LoggedFigures(4, figures, 8.0).row() == {
        "step": 4,
        "time": 8.0,
        "loss": 2.0,
        "learning_rate": 0.1,
        "grad_norm": "inf",
        "val_loss": 3.0,
        "tokens": 7,
        "reward": 1,
    }
    assert LoggedFigures(1, {"loss": 1.0, "train_loss": 2.0}).row() == {
        "step": 1,
        "loss": 1.0,
        "train_loss": 2.0,
    }


def test_a_figure_that_is_not_finite_is_kept() -> None:
    """A whole number beyond every float is infinite."""
    for text, wanted in (('"nan"', "nan"), ('"inf"', "inf"), ('"-inf"', "-inf"), ("1" + "0" * 400, "inf")):
        event = parse_event(f'{{"event": "row", "step": 1, "loss": {text}}}'.encode())
        assert isinstance(event, LoggedFigures) and event.row()["loss"] == wanted


LIMIT = 120.0
"""Seconds; the rule takes minutes."""


def rule(logs: Path, *, number: int = 0, minutes: float | None = LIMIT / 60) -> HangRule:
    return HangRule(logs, minutes, number=number)


@each_case("courses", list(itertools.product(("rows", "output", "nothing"), repeat=4)))
def test_it_hangs_without_rows_and_output_for_the_limit(courses: tuple[str, ...], tmp_path: Path) -> None:
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
