"""Copy a run's report and records into a folder of bounded size, for a GitHub artifact that people read.

    run.json  config.yaml  metrics.jsonl  events.jsonl  report/  logs/*  ──>  a folder

Checkpoints and trackers' files (`tensorboard/`, W&B's folder in `logs/`) are omitted: GitHub counts artifacts
against the owner's storage, and refuses all further ones when that is full. The store has the omitted files.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.errors import ConfigError
from trainyard.run.atomic_files import make_folder
from trainyard.run.directory import RunDirectory

LARGEST_FILE = 32 << 20
"""A larger metrics.jsonl or events.jsonl is cut to its last rows; any other larger file is omitted."""
LARGEST_LOG = 8 << 20
"""A larger text file in `logs/` is cut to its beginning and its end: the first error may be in either."""
LARGEST_LOGS = 32 << 20
"""Total size kept of `logs/`, smallest files first."""
_TEXTS = (".log", ".txt")
_CUT = b"\n[... the middle of this file was left out ...]\n"


@dataclass
class RecordCopy:
    """The copy of a run's directory, and its files; names are relative to that directory."""

    names: list[str] = field(default_factory=list)
    shortened: list[str] = field(default_factory=list)
    """Files that were shortened."""
    left_out: list[str] = field(default_factory=list)
    """Files that are too large."""
    size: int = 0
    """Bytes."""


def gather_records(directory: RunDirectory, target: Path) -> RecordCopy:
    """Copy the report and the records of a run into the new folder `target`.

    Missing files are skipped. Raises ConfigError when `target` exists.
    """
    if os.path.lexists(target):
        raise ConfigError(f"{target} exists already; name a folder that does not, or remove it")
    make_folder(target)
    gathered = RecordCopy()

    def put(path: Path, content: bytes | None) -> None:
        """Write `content`, all or part of the file `path`; None omits the file."""
        relative = path.relative_to(directory.path)
        if content is None:
            gathered.left_out.append(relative.as_posix())
            return
        make_folder((target / relative).parent)
        (target / relative).write_bytes(content)
        gathered.names.append(relative.as_posix())
        gathered.size += len(content)
        if len(content) < path.stat().st_size:
            gathered.shortened.append(relative.as_posix())

    for path in _files(directory.path, "run.json", "config.yaml", "report/**/*"):
        put(path, _full_content(path))
    for path in _files(directory.path, "metrics.jsonl", "events.jsonl", "evaluations.jsonl"):
        put(path, _last_rows(path))
    end = gathered.size + LARGEST_LOGS
    for path in sorted(_files(directory.path, "logs/*"), key=lambda path: path.stat().st_size):
        content = _both_ends(path) if path.suffix in _TEXTS else _full_content(path)
        fits = content is not None and gathered.size + len(content) <= end
        put(path, content if fits else None)
    return gathered


def _files(folder: Path, *patterns: str) -> Iterator[Path]:
    for pattern in patterns:
        yield from sorted(path for path in folder.glob(pattern) if path.is_file() and not path.is_symlink())


def _full_content(path: Path) -> bytes | None:
    return path.read_bytes() if path.stat().st_size <= LARGEST_FILE else None


def _last_rows(path: Path) -> bytes:
    """Return the file, or its last complete lines."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size > LARGEST_FILE:
            file.seek(size - LARGEST_FILE)
            file.readline()  # probably the rest of a cut row
        return file.read()


def _both_ends(path: Path) -> bytes:
    """Return the file, or its beginning and its end."""
    size, half = path.stat().st_size, (LARGEST_LOG - len(_CUT)) // 2
    with path.open("rb") as file:
        if size <= LARGEST_LOG:
            return file.read()
        head = file.read(half)
        file.seek(size - half)
        return head + _CUT + file.read(half)
