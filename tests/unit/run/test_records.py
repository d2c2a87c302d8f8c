from pathlib import Path

import pytest

from trainyard.run.records import RecordWriter, Row, append_event, keep_rows_up_to, read_rows


def write(path: Path, *rows: Row) -> None:
    writer = RecordWriter(path)
    for row in rows:
        writer.write(row)
    writer.close()


def test_rows_come_back_with_their_time_and_without_unknown_values(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, {"step": 1, "loss": 0.1 + 0.2, "mfu": None}, {"step": 2, "time": 5.0})
    first, second = read_rows(path)
    assert first["loss"] == 0.1 + 0.2
    assert "mfu" not in first
    assert first["time"] > 0
    assert second == {"step": 2, "time": 5.0}


def test_a_torn_last_line_is_skipped_in_reading_and_cut_off_in_writing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    assert [row["step"] for row in read_rows(path)] == [1]
    write(path, {"step": 2})
    assert [row["step"] for row in read_rows(path)] == [1, 2]


def test_a_line_is_on_disk_before_write_returns(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "metrics.jsonl")
    writer.write({"step": 1})
    assert len(read_rows(tmp_path / "metrics.jsonl")) == 1
    writer.close()


@pytest.mark.parametrize("content", ["", "\n\n", "null\n[]\n3\n"])
def test_lines_that_are_no_objects_are_no_rows(tmp_path: Path, content: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(content)
    assert read_rows(path) == []
    assert read_rows(tmp_path / "absent.jsonl") == []


def test_numbers_that_json_does_not_know_are_refused(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="Out of range"):
        writer.write({"loss": float("nan")})
    writer.close()


def test_rows_after_a_step_are_dropped_and_the_others_kept_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, *({"step": step, "loss": step / 3} for step in range(1, 6)))
    kept = b"".join(path.read_bytes().splitlines(keepends=True)[:3])
    assert keep_rows_up_to(path, 3) == 2
    assert path.read_bytes() == kept
    assert keep_rows_up_to(path, 3) == 0
    assert keep_rows_up_to(tmp_path / "absent.jsonl", 3) == 0


def test_events_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append_event(path, "started", step=0, dropped_rows=None)
    append_event(path, "finished", step=9)
    assert [(row["event"], row["step"]) for row in read_rows(path)] == [("started", 0), ("finished", 9)]
    assert "dropped_rows" not in read_rows(path)[0]
