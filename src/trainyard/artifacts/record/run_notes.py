"""The notes and tags that people give to a run: `notes.json` in its directory, `notes/run-N.json` in a store.

They are no records of the run: no manifest lists them, and no proof reads them, so they change at any time.
"""

import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.store.layout import notes_key
from trainyard.artifacts.store.object_store import put_and_confirm
from trainyard.errors import ConfigError, DamagedFileError, RunConflictError
from trainyard.run.atomic_files import write_bytes_atomically
from trainyard.run.untrusted_files import parse_json_object, read_bytes

if TYPE_CHECKING:
    from trainyard.artifacts.store.object_store import Store

SCHEMA_VERSION = 1
FILE = "notes.json"
_TAG = re.compile(r"[\w][\w./:=-]{0,62}")
_MOST_BYTES = 1 << 20
Change = Callable[["RunNotes"], "RunNotes"]


@dataclass(frozen=True)
class RunNotes:
    """The notes and tags that people gave a run."""

    notes: tuple[dict[str, Any], ...] = ()
    """Each with `text` and `time` (Unix seconds), oldest first."""
    tags: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The newest note."""
        return str(self.notes[-1].get("text", "")) if self.notes else ""

    def with_note(self, text: str, *, tags: Iterable[str], removed: Iterable[str], time: float) -> "RunNotes":
        """Return the notes with one more and with other tags. Raises ConfigError for a tag with spaces."""
        for tag in tags:
            if not _TAG.fullmatch(tag):
                raise ConfigError(f"--tag {tag[:60]!r}: use letters, digits and _ - . / : = without spaces")
        added = ({"text": text, "time": time},) if text else ()
        kept = dict.fromkeys((*self.tags, *tags))
        return replace(
            self, notes=(*self.notes, *added), tags=tuple(tag for tag in kept if tag not in set(removed))
        )

    @property
    def content(self) -> bytes:
        text = json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self)}, indent=2, ensure_ascii=False)
        return f"{text}\n".encode()


def parse_notes(content: bytes | None, name: str) -> RunNotes:
    """Return the notes in a file; none without a file, or if it holds something else."""
    try:
        value = parse_json_object(content, name) if content is not None else {}
    except DamagedFileError:
        return RunNotes()
    notes, tags = value.get("notes"), value.get("tags")
    return RunNotes(
        tuple(note for note in notes if isinstance(note, dict)) if isinstance(notes, list) else (),
        tuple(map(str, tags)) if isinstance(tags, list) else (),
    )


def notes_of_directory(directory: Path) -> RunNotes:
    """Return the notes of a run directory."""
    path = directory / FILE
    with suppress(FileNotFoundError, DamagedFileError):
        return parse_notes(read_bytes(path, most=_MOST_BYTES, links=False), str(path))
    return RunNotes()


def notes_in_store(store: "Store", number: int) -> RunNotes:
    """Return the notes of a stored run. Raises ServiceError when the store cannot be reached."""
    return parse_notes(store.read_object(notes_key(number)), notes_key(number))


def change_directory(directory: Path, change: Change, *, dry_run: bool = False) -> RunNotes:
    """Change the notes of a run directory, and return them."""
    notes = change(notes_of_directory(directory))
    if not dry_run:
        write_bytes_atomically(directory / FILE, notes.content)
    return notes


def change_store(store: "Store", number: int, change: Change, *, dry_run: bool = False) -> RunNotes:
    """Change the notes of a stored run. Raises RunConflictError if somebody else did so meanwhile."""
    key = notes_key(number)
    before = store.read_object(key)
    notes = change(parse_notes(before, key))
    if dry_run:
        return notes
    if not put_and_confirm(store, key, notes.content, old=before):
        raise RunConflictError(f"{key}: somebody else changed the notes meanwhile. Try again.")
    return notes
