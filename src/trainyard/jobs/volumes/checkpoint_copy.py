"""Copy a checkpoint out of a pod, verified on both ends, and continue after an interruption.

    pod: file ──stream──> .NAME.partial/file ──digests equal──> all there ──> NAME/

A checkpoint appears under its name only when all of its files are correct. A file that is there already is
sent from its end on, which is nothing but the digest of a complete one.
"""

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from trainyard.errors import CheckpointError, ConfigError, ServiceTroubleError
from trainyard.jobs.volumes.volume_source import VolumeSource
from trainyard.programs.checkpoints.checkpoint_formats import FoundCheckpoint
from trainyard.programs.checkpoints.volume_listing import VolumeFile

# Seconds before each attempt after an interruption; the first again after a connection that sent bytes.
PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0)
_SPARE_BYTES = 64 << 20
_logger = logging.getLogger(__name__)


@dataclass
class CopyReport:
    """The result of a copy."""

    sha256: dict[str, str] = field(default_factory=dict)
    """Path relative to the checkpoint -> digest, equal on both ends."""
    fetched_bytes: int = 0
    """Bytes transferred in this call; the others were there already."""
    kept_files: int = 0
    cuts: int = 0


def copy_to_folder(
    source: VolumeSource,
    checkpoint: FoundCheckpoint,
    to: Path,
    *,
    progress: Callable[[int], None],
    wait: Callable[[float], None] = time.sleep,
) -> CopyReport:
    """Copy the checkpoint to a folder of its name below `to`, with the trackers that point at it.

    Raises CheckpointError if a file changes or differs from its manifest, ServiceTroubleError if the
    connection stays broken; a later call continues where this one ended.
    """
    name = PurePosixPath(checkpoint.path).name
    final, partial = to / name, to / f".{name}.partial"
    folder = final if final.exists() else partial
    folder.mkdir(parents=True, exist_ok=True)
    _require_space(checkpoint, folder)
    copier = _Copier(source, progress, wait)
    for file in checkpoint.files:
        relative = str(PurePosixPath(file.path).relative_to(checkpoint.path))
        copier.copy(file, relative, folder / relative, checkpoint.sha256.get(file.path))
    if folder is partial:
        partial.rename(final)
    step = "release" if checkpoint.step is None else str(checkpoint.step)
    for tracker in (to / PurePosixPath(each.path).name for each in checkpoint.trackers):
        if not _is_later(tracker, step):
            new = tracker.with_name(f".{tracker.name}.{os.getpid()}")
            new.write_text(step)
            new.replace(tracker)
    return copier.report


@dataclass
class _Copier:
    """Copies files, and counts what it does."""

    _source: VolumeSource
    _progress: Callable[[int], None]
    _wait: Callable[[float], None]
    report: CopyReport = field(default_factory=CopyReport)

    def copy(self, file: VolumeFile, name: str, path: Path, claimed: str | None) -> None:
        """Copy a file to `path`; `claimed` is its digest by a manifest."""
        path.parent.mkdir(parents=True, exist_ok=True)
        was_there, before = path.exists(), self.report.fetched_bytes
        digest = self._fetch_and_verify(file, path)
        if claimed not in (None, digest):
            path.unlink()
            raise CheckpointError(
                f"{file.path}: SHA-256 {digest[:12]}… in the pod, its manifest says {str(claimed)[:12]}…"
            )
        self.report.kept_files += was_there and self.report.fetched_bytes == before
        self.report.sha256[name] = digest

    def _fetch_and_verify(self, file: VolumeFile, path: Path) -> str:
        """Fetch the file from where it was cut off; if its beginning turns out wrong, fetch it once more."""
        for _ in range(2):
            sent, digest = self._fetch(file, path)
            if digest == sent:
                return digest
            path.unlink()
            _logger.warning("%s: its part on disk was wrong; it is fetched again", file.path)
        raise CheckpointError(f"{file.path}: the received bytes differed from those in the pod, twice")

    def _fetch(self, file: VolumeFile, path: Path) -> tuple[str, str]:
        """Fetch what is missing of the file; return its digest in the pod, and the digest here."""
        failures = 0
        while True:
            if path.exists() and path.stat().st_size > file.size:
                path.unlink()
            before = self.report.fetched_bytes
            with path.open("ab+") as target:
                start = target.tell()
                target.seek(0)
                digest = hashlib.file_digest(target, "sha256")
                try:
                    sent = self._source.send(file, start, self._make_receiver(target, digest))
                    target.flush()
                    os.fsync(target.fileno())
                    return sent, digest.hexdigest()
                except ServiceTroubleError as error:
                    self.report.cuts += 1
                    failures = 1 if self.report.fetched_bytes > before else failures + 1
                    if failures > len(PAUSES):
                        raise
                    _logger.warning("%s: %s; continuing at byte %d", file.path, error, target.tell())
            self._wait(PAUSES[failures - 1])

    def _make_receiver(self, target: IO[bytes], digest: "hashlib._Hash") -> Callable[[bytes], None]:
        def take(piece: bytes) -> None:
            target.write(piece)
            digest.update(piece)
            self.report.fetched_bytes += len(piece)
            self._progress(len(piece))

        return take


def _require_space(
    checkpoint: FoundCheckpoint, folder: Path, usage: Callable[[Path], Any] = shutil.disk_usage
) -> None:
    there = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    wanted, free = max(0, checkpoint.size - there), usage(folder).free
    if wanted + _SPARE_BYTES > free:
        raise ConfigError(f"{folder}: {free / 1e9:.1f} GB are free, and {wanted / 1e9:.1f} GB are needed")


def _is_later(tracker: Path, step: str) -> bool:
    """Return whether an existing tracker points at a later step than this one."""
    with suppress(OSError, ValueError):
        return int(tracker.read_text()) > int(step)
    return False
