"""The records of a run as they are judged: each is read once, and hashed as it is read.

A verdict is of these bytes: `digests` says which they were, so that whoever shows the verdict later can tell
whether the run still is what was judged. Nothing is judged here.
"""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from trainyard.errors import ConfigError, DamagedFileError
from trainyard.run.directory import RunDirectory
from trainyard.run.files import sha256_of_file
from trainyard.run.identity import parse_run
from trainyard.run.outside import iterate_json_lines, open_regular, read_bytes

RECORDS = ("run.json", "config.yaml", "metrics.jsonl", "events.jsonl")
"""What a proof judges, by name in the run directory."""


class JudgedRecords:
    """The four records of the run in a directory. What is no file of its own is refused by name."""

    def __init__(self, directory: RunDirectory) -> None:
        """Raises ConfigError when it is no run directory, TrainyardError when its `run.json` is damaged."""
        self._directory = directory
        try:
            content = read_bytes(directory.run_file, links=False)
        except FileNotFoundError:
            where = directory.path
            raise ConfigError(f"{directory.run_file}: missing, so {where} is no run directory") from None
        self.run: dict[str, Any] = parse_run(content, str(directory.run_file))
        self._digests = {directory.run_file.name: hashlib.sha256(content).hexdigest()}
        self.config = self._config()

    def _config(self) -> bytes | None:
        """The bytes of `config.yaml`; None where there is none that can be read."""
        path = self._directory.config_file
        with suppress(FileNotFoundError, DamagedFileError):
            content = read_bytes(path, links=False)
            self._digests[path.name] = hashlib.sha256(content).hexdigest()
            return content
        return None

    def rows(self) -> Iterator[dict[str, Any] | None]:
        """The rows of `metrics.jsonl`, None for a line that is none; read to the end whoever stops early."""
        return self._lines("metrics.jsonl")

    def events(self) -> Iterator[dict[str, Any] | None]:
        """The events, None for a line that is none."""
        return self._lines("events.jsonl")

    def _lines(self, name: str) -> Iterator[dict[str, Any] | None]:
        digest = hashlib.sha256()
        try:
            yield from iterate_json_lines(self._directory.path / name, links=False, passing=digest.update)
        except DamagedFileError:
            yield None  # whoever judges says that a line cannot be read
            return
        if (self._directory.path / name).exists():
            self._digests[name] = digest.hexdigest()

    def digests(self) -> dict[str, str]:
        """The SHA-256 of each record as it was read, by its name; none of one not read to its end."""
        return dict(self._digests)


def digests_now(directory: RunDirectory) -> dict[str, str]:
    """The SHA-256 of each record as it lies there, by its name; none of what is missing or no file."""
    found = {}
    for name in RECORDS:
        with suppress(FileNotFoundError, DamagedFileError, OSError):
            with open_regular(directory.path / name, links=False):
                pass
            found[name] = sha256_of_file(directory.path / name)
    return found
