"""Read the records of a run once for the proof, and hash them while reading.

`digests` identifies the bytes that were judged, so that a later reader of the verdict can know whether the
run has changed since. Nothing is judged here.
"""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from trainyard.errors import DamagedFileError
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import parse_run
from trainyard.run.run_advice import not_a_run
from trainyard.run.untrusted_files import iterate_json_lines, read_bytes, sha256_of_file

RECORDS = ("run.json", "config.yaml", "metrics.jsonl", "events.jsonl", "evaluations.jsonl")
"""The records that a proof judges, by name in the run directory; the last is of evaluations, if any."""


class JudgedRecords:
    """The records of a run directory. A record that is not a regular file is refused by name."""

    def __init__(self, directory: RunDirectory) -> None:
        """Raise ConfigError if it is not a run directory, TrainyardError if `run.json` is damaged."""
        self._directory = directory
        try:
            content = read_bytes(directory.run_file, links=False)
        except FileNotFoundError:
            raise not_a_run(directory.path) from None
        self.run: dict[str, Any] = parse_run(content, str(directory.run_file))
        self._digests = {directory.run_file.name: hashlib.sha256(content).hexdigest()}
        self.config = self._config()

    def _config(self) -> bytes | None:
        """Return the bytes of `config.yaml`; None if it cannot be read."""
        path = self._directory.config_file
        with suppress(FileNotFoundError, DamagedFileError):
            content = read_bytes(path, links=False)
            self._digests[path.name] = hashlib.sha256(content).hexdigest()
            return content
        return None

    def rows(self) -> Iterator[dict[str, Any] | None]:
        """Yield the rows of `metrics.jsonl`, None for an invalid line; the file is always read to its end."""
        return self._lines("metrics.jsonl")

    def events(self) -> Iterator[dict[str, Any] | None]:
        """Yield the events, None for an invalid line."""
        return self._lines("events.jsonl")

    def evaluations(self) -> Iterator[dict[str, Any] | None]:
        """Yield the evaluations of its checkpoints, None for an invalid line."""
        return self._lines("evaluations.jsonl")

    def _lines(self, name: str) -> Iterator[dict[str, Any] | None]:
        digest = hashlib.sha256()
        try:
            yield from iterate_json_lines(self._directory.path / name, links=False, passing=digest.update)
        except DamagedFileError:
            yield None  # the proof reports an unreadable line
            return
        if (self._directory.path / name).exists():
            self._digests[name] = digest.hexdigest()

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each record as read, by name; records not read to their end are absent."""
        return dict(self._digests)


def digests_now(directory: RunDirectory) -> dict[str, str]:
    """Return the SHA-256 of each record on disk, by its name. Missing and irregular files are absent."""
    found = {}
    for name in RECORDS:
        with suppress(OSError, DamagedFileError):
            found[name] = sha256_of_file(directory.path / name)
    return found
