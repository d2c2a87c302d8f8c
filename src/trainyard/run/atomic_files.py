"""Write files atomically (temporary name, fsync, rename), and compute their SHA-256.

The module knows nothing about the content of the files.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.errors import ConfigError
from trainyard.run.progress import UNSEEN, Progress

_CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 512
"""The unit of `st_blocks`."""


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`: a reader, or a crash at any time, sees the old file or the new one.

    A link stays a link: the file behind it is replaced. A device or a pipe is written to and not replaced.
    Raises OSError if that is impossible.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(content)
        return
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_json_atomically(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` atomically as indented JSON; characters that are not valid Unicode become `?`."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_bytes_atomically(path, text.encode(errors="replace"))


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents. Raises ConfigError when that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError(
            f"{path}: is a file and must be a folder. Move it away, or name another path."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: the folder cannot be created ({error.strerror})") from None


def sync_directory(path: Path) -> None:
    """Make the renames and removals in `path` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of_file(path: Path, progress: Progress = UNSEEN) -> str:
    """Return the hex SHA-256 of `path`, read once in constant memory; each block advances `progress`."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            progress.advance(len(chunk))
    return digest.hexdigest()


class FileDigests:
    """Counts and hashes the bytes of a file that arrive in order."""

    def __init__(self) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()

    def update(self, content: bytes | memoryview) -> None:
        self._sha256.update(content)
        self.size += len(content)

    @property
    def sha256(self) -> str:
        """Lower-case hex."""
        return self._sha256.hexdigest()


def bytes_on_disk(path: Path) -> int:
    """Return the disk space of a file, without its holes; 0 if it does not exist."""
    if not path.is_file():
        return 0
    found = path.stat()
    return min(found.st_size, found.st_blocks * _BLOCK_BYTES)
