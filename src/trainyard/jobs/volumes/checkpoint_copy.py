"""Copy a checkpoint out of a pod, verified on both ends, and continue after an interruption.

    pod: file ──stream──> .NAME.partial/file ──digests equal──> all there ──> NAME/

Each copied file is recorded with its digest beside the files, so that the next attempt does not read
unchanged files again. A checkpoint appears under its name only when all of its files are correct.
"""

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from trainyard.errors import CheckpointError, ConfigError, ServiceTroubleError
from trainyard.jobs.volumes.volume_source import FileDigest, VolumeSource
from trainyard.programs.checkpoints.found_checkpoint import FoundCheckpoint
from trainyard.programs.checkpoints.volume_listing import VolumeFile

PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before each attempt after an interruption; the first again after a connection that sent bytes."""
_JOURNAL = ".copied.jsonl"
_SPARE_BYTES = 64 << 20
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CopiedFile:
    """A file that was verified on both ends."""

    name: str
    """Path relative to the checkpoint."""
    size: int
    sha256: str


@dataclass(frozen=True)
class CopyReport:
    """The result of a copy."""

    files: tuple[CopiedFile, ...]
    fetched_bytes: int
    """Bytes transferred in this call; the others were there already."""
    kept_files: int
    cuts: int

    def record(self, checkpoint: FoundCheckpoint) -> dict[str, Any]:
        """Return the result as plain data, which is also written beside the copy."""
        return {
            **checkpoint.record(),
            "copied": [{"path": f.name, "bytes": f.size, "sha256": f.sha256} for f in self.files],
        }


class CheckpointCopier:
    """Copies one checkpoint to a folder."""

    def __init__(
        self,
        source: VolumeSource,
        checkpoint: FoundCheckpoint,
        folder: Path,
        *,
        progress: Callable[[int], None] = lambda _count: None,
        wait: Callable[[float], None] = time.sleep,
        disk_usage: Callable[[Path], Any] = shutil.disk_usage,
    ) -> None:
        self._source, self._checkpoint, self._folder = source, checkpoint, folder
        self._progress, self._wait, self._disk_usage = progress, wait, disk_usage
        self._journal = _read_journal(folder / _JOURNAL)
        self._fetched = self._kept = self._cuts = 0

    def copy(self) -> CopyReport:
        """Copy every file that is not there yet.

        Raises CheckpointError if a file changes or differs from its manifest, ServiceTroubleError if the
        connection stays broken; a later call continues where this one ended.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        self._require_space()
        files = tuple(self._copy_file(file) for file in self._checkpoint.files)
        return CopyReport(files, self._fetched, self._kept, self._cuts)

    def _copy_file(self, file: VolumeFile) -> CopiedFile:
        name = str(PurePosixPath(file.path).relative_to(self._checkpoint.path))
        path = self._folder / name
        if (known := self._find_earlier_copy(file, name, path)) is not None:
            self._kept += 1
            self._progress(file.size)
            return known
        path.parent.mkdir(parents=True, exist_ok=True)
        sha256 = self._fetch_and_verify(file, path)
        claimed = self._checkpoint.sha256.get(file.path)
        if claimed is not None and claimed != sha256:
            path.unlink()
            raise CheckpointError(
                f"{file.path}: SHA-256 {sha256[:12]}… in the pod, its manifest says {claimed[:12]}…"
            )
        self._note_in_journal(file, name, sha256)
        return CopiedFile(name, file.size, sha256)

    def _find_earlier_copy(self, file: VolumeFile, name: str, path: Path) -> CopiedFile | None:
        """Return the file, if an earlier call has copied it and it is still correct.

        Where no journal has its digest, the pod computes it, and no bytes are sent.
        """
        if not path.is_file() or path.stat().st_size != file.size:
            return None
        noted = self._journal.get(name)
        if noted is not None and (noted["bytes"], noted["modified"]) == (file.size, file.modified):
            sha256 = str(noted["sha256"])
        else:
            sha256 = self._source.digest(file).sha256
        return CopiedFile(name, file.size, sha256) if _digest_of(path).hexdigest() == sha256 else None

    def _fetch_and_verify(self, file: VolumeFile, path: Path) -> str:
        """Fetch the file from where it was cut off; if its beginning turns out wrong, fetch it once more."""
        for anew in (False, True):
            if anew:
                path.unlink(missing_ok=True)
            sent, digest = self._fetch(file, path)
            if not sent.is_same or sent.size != file.size:
                raise CheckpointError(f"{file.path} changed while it was copied; copy again when it is done")
            if digest == sent.sha256:
                return digest
            _logger.warning("%s: its part on disk was wrong; it is fetched again", file.path)
        raise CheckpointError(f"{file.path}: the received bytes differed from those in the pod, twice")

    def _fetch(self, file: VolumeFile, path: Path) -> tuple[FileDigest, str]:
        failures = 0
        while True:
            if path.exists() and path.stat().st_size > file.size:
                path.unlink()
            digest = _digest_of(path)
            start = path.stat().st_size if path.exists() else 0
            before = self._fetched
            try:
                with path.open("ab") as target:
                    sent = self._source.send(file, start, self._make_receiver(target, digest))
                    target.flush()
                    os.fsync(target.fileno())
                return sent, digest.hexdigest()
            except ServiceTroubleError as error:
                self._cuts += 1
                failures = 1 if self._fetched > before else failures + 1
                if failures > len(PAUSES):
                    raise
                _logger.warning("%s: %s; continuing at byte %d", file.path, error, path.stat().st_size)
                self._wait(PAUSES[failures - 1])

    def _make_receiver(self, target: IO[bytes], digest: "hashlib._Hash") -> Callable[[bytes], None]:
        def take(piece: bytes) -> None:
            target.write(piece)
            digest.update(piece)
            self._fetched += len(piece)
            self._progress(len(piece))

        return take

    def _require_space(self) -> None:
        sizes = [file.size for file in self._checkpoint.files]
        there = sum(p.stat().st_size for p in self._folder.rglob("*") if p.is_file())
        wanted = max(0, sum(sizes) - there)
        free = self._disk_usage(self._folder).free
        if wanted + _SPARE_BYTES > free:
            raise ConfigError(
                f"{self._folder}: {free / 1e9:.1f} GB are free, and {wanted / 1e9:.1f} GB are needed"
            )

    def _note_in_journal(self, file: VolumeFile, name: str, sha256: str) -> None:
        line = {"path": name, "bytes": file.size, "modified": file.modified, "sha256": sha256}
        with (self._folder / _JOURNAL).open("a") as journal:
            journal.write(json.dumps(line) + "\n")


def copy_to_folder(
    source: VolumeSource, checkpoint: FoundCheckpoint, to: Path, *, progress: Callable[[int], None]
) -> CopyReport:
    """Copy the checkpoint to a folder of its name below `to`. Raises as `CheckpointCopier.copy` does."""
    name = PurePosixPath(checkpoint.path).name
    final, partial = to / name, to / f".{name}.partial"
    folder = final if final.exists() else partial
    copied = CheckpointCopier(source, checkpoint, folder, progress=progress).copy()
    (folder / _JOURNAL).unlink(missing_ok=True)
    if folder is partial:
        partial.rename(final)
    for text, target in companion_files(checkpoint, copied):
        if not _is_later(to / target, text):
            _write(to / target, text)
    return copied


def companion_files(checkpoint: FoundCheckpoint, copied: CopyReport) -> list[tuple[str, str]]:
    """Text and name of the files beside a copy: its record, and the tracker that points at it."""
    name = PurePosixPath(checkpoint.path).name
    found = [(json.dumps(copied.record(checkpoint), indent=1) + "\n", f"{name}.copied.json")]
    step = "release" if checkpoint.step is None else str(checkpoint.step)
    return [*((step, PurePosixPath(tracker.path).name) for tracker in checkpoint.trackers), *found]


def _is_later(path: Path, text: str) -> bool:
    """Return whether an existing tracker points at a later step than this one."""
    with suppress(OSError, ValueError):
        return int(path.read_text()) > int(text)
    return False


def _write(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)


def _digest_of(path: Path) -> "hashlib._Hash":
    with suppress(FileNotFoundError), path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256")
    return hashlib.sha256()


def _read_journal(path: Path) -> dict[str, dict[str, Any]]:
    """Return the files that earlier calls have copied; a line that was cut off is ignored."""
    found: dict[str, dict[str, Any]] = {}
    with suppress(OSError):
        for line in path.read_text().splitlines():
            with suppress(ValueError, TypeError, KeyError):
                entry = json.loads(line)
                found[str(entry["path"])] = {
                    "bytes": int(entry["bytes"]),
                    "modified": float(entry["modified"]),
                    "sha256": str(entry["sha256"]),
                }
    return found
