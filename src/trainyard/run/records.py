"""Write and read a run's JSON-lines records: `metrics.jsonl` (one row per logged step) and `events.jsonl`.

Writing appends complete lines; reading tolerates a last line that a crash cut off. Unknown values are
omitted.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainyard.errors import ExitCode, RecordError
from trainyard.run.atomic_files import write_bytes_atomically
from trainyard.run.suggested_commands import made_by, resume_command
from trainyard.run.untrusted_files import iterate_json_lines

Row = dict[str, Any]


class RecordWriter:
    """Appends rows to a JSON-lines file; each row is passed to the system before `write` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _explain_errors(path):
            content = path.read_bytes() if path.is_file() else b""
            if content and not content.endswith(b"\n"):  # the next row starts on its own line
                os.truncate(path, content.rfind(b"\n") + 1)
            self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, row: Row) -> None:
        """Append `row` without its unknown (None) values, with `time` (Unix seconds) if it has none."""
        known = {key: value for key, value in row.items() if value is not None}
        known.setdefault("time", time.time())
        line = line_of_row(known)
        with _explain_errors(self._path):
            self._file.write(line)

    def close(self) -> None:
        with _explain_errors(self._path):
            self._file.close()


def line_of_row(row: Row) -> str:
    """Return a row as a line of JSON. Raises ValueError for a number that is not finite."""
    return json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n"


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Append rows that have their time, in one go, to a file that ends with a complete line."""
    from pydantic_core import to_json  # several times as fast as json

    lines = b"".join(to_json(row) + b"\n" for row in rows)
    with _explain_errors(path), path.open("ab") as file:
        file.write(lines)


def ending_event(status: str, exit_code: int) -> str:
    """Return the name of a run's last event: how it ended."""
    if status != "stopped":
        return "finished"
    return "interrupted" if exit_code == ExitCode.INTERRUPTED else "preempted"


def append_event(path: Path, event: str, **fields: Any) -> None:
    """Append one event (`started`, `checkpoint_saved`, …) to `events.jsonl`."""
    writer = RecordWriter(path)
    try:
        writer.write({"event": event, **fields})
    finally:
        writer.close()


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    """Turn an error of the system into a RecordError that names the file."""
    try:
        yield
    except OSError as error:
        raise RecordError(
            f"{path}: cannot be written ({error.strerror}). The checkpoints are unchanged. Free space or "
            f"fix it, then: {resume_command(path.parent, command_line=made_by())}"
        ) from error


def read_rows(path: Path) -> list[Row]:
    """Return all complete rows of a JSON-lines file, none if it is missing; other lines are skipped.

    Raises DamagedFileError when the path is not a file.
    """
    return list(iterate_rows(path))


def iterate_rows(path: Path) -> Iterator[Row]:
    """Yield the complete rows of a JSON-lines file in constant memory, as `read_rows` does."""
    return (row for row in iterate_json_lines(path) if row is not None)


def keep_rows_up_to(path: Path, step: int) -> int:
    """Drop the rows after `step`, which a resumed run writes again; return the number of dropped rows."""
    rows, kept, at = read_rows(path), list[Row](), 0
    for row in rows:
        at = int(row.get("step", at))  # a row without a step belongs to the one before it
        if at <= step:
            kept.append(row)
    if len(kept) < len(rows):
        write_bytes_atomically(path, "".join(map(line_of_row, kept)).encode())
    return len(rows) - len(kept)
