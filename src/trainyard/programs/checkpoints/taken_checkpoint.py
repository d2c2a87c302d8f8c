"""Take a program's newest complete checkpoint into the run directory, with a manifest that is written last.

    program's folder ──copy──> checkpoints/.step-N.copy ──unchanged and still complete──> checkpoints/step-N

Its files are copied, on file systems with shared extents without using space, and never hard-linked: programs
overwrite files in place when they save a step again. The copy is hashed, so the manifest is about its bytes.
Nothing is written into the program's folder, because some programs delete checkpoints by their folder's time.
"""

import os
import shutil
import time
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from trainyard.errors import CheckpointError
from trainyard.programs.checkpoints.program_checkpoints import ProgramCheckpoint
from trainyard.programs.checkpoints.tensor_facts import Tensors, read_tensors, summary_of
from trainyard.programs.sources import Source
from trainyard.run.atomic_files import FileDigests, sha256_of_file
from trainyard.run.checkpoint_manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    ManifestFile,
    describe_files,
    read_manifest,
    verify_checkpoint,
    write_manifest,
)
from trainyard.run.directory import RunDirectory, step_name

_PIECE = 1 << 30
"""Most bytes of one call of copy_file_range."""


@dataclass(frozen=True)
class TakenCheckpoint:
    """A checkpoint of the program that was copied into the run directory."""

    step: int
    manifest_sha256: str
    source: Source = Source.CHECKPOINT
    """The source of its step; `guessed` if the step is only the last one on record when it was saved."""
    tensors: Tensors | None = field(default=None, compare=False)
    """None if they were read when it was taken before."""
    weights: str = field(default="", compare=False)
    """The relation of its weights to the trained ones, as of a ProgramCheckpoint."""


def take_checkpoint(
    checkpoint: ProgramCheckpoint, directory: RunDirectory, run_id: str, *, step: int, source: Source
) -> TakenCheckpoint:
    """Copy the checkpoint into `checkpoints/`, write its manifest last, and return its step and digest.

    If the same bytes were taken before, nothing is copied, and its tensors are not read. Raises
    CheckpointError if it changed while it was copied, if a file is damaged, or if it has a file of the
    manifest's name; OSError if a file is gone.
    """
    names = checkpoint.files()
    if MANIFEST_NAME in names:
        raise CheckpointError(f"{checkpoint.base / MANIFEST_NAME}: Trainyard's own manifest needs this name")
    target, tensors = directory.checkpoint(step), None
    if not _is_taken(checkpoint, target, run_id):
        copy = directory.checkpoints / f".{step_name(step)}.copy"
        shutil.rmtree(copy, ignore_errors=True)  # of an attempt that was killed
        copy.mkdir(parents=True)
        try:
            for name in names:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                _copy_file(checkpoint.base / name, copy / name)
            checkpoint.require_unchanged()
            described, tensors = _read_files(copy, names)
            files = describe_files(copy, described)
            manifest = CheckpointManifest(step, run_id, time.time(), files, checkpoint.is_file)
            (target / MANIFEST_NAME).unlink(missing_ok=True)
            shutil.rmtree(target, ignore_errors=True)
            copy.rename(target)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        write_manifest(target, manifest)
    return TakenCheckpoint(step, sha256_of_file(target / MANIFEST_NAME), source, tensors)


def tensors_of(checkpoint: ProgramCheckpoint) -> Tensors:
    """Return the tensors of a checkpoint of the program. Raises CheckpointError if a file is damaged."""
    return _read_files(checkpoint.base, checkpoint.files())[1]


def _read_files(folder: Path, names: Iterable[str]) -> tuple[list[ManifestFile], Tensors]:
    """Return digests and tensors of files, each read once. Raises CheckpointError if one is damaged."""
    described, found = [], {}
    for name in names:
        digests = FileDigests()
        found[name] = read_tensors(folder / name, digests.update)
        described.append(ManifestFile.of(name, digests))
    return described, summary_of(found)


def restorable_path(checkpoint: Path) -> Path:
    """Return the path for a program's resume argument: the folder of the run directory, or its one file.

    Raises CheckpointError if the checkpoint has no readable manifest.
    """
    manifest = read_manifest(checkpoint)
    return checkpoint / manifest.files[0].path if manifest.is_file else checkpoint


def is_of_torch(path: Path) -> bool:
    """Return whether only torch.load reads a checkpoint: torch.save has written it, or a file in it."""
    for file in (path, *path.rglob("*")):
        with suppress(OSError, zipfile.BadZipFile, NotImplementedError):
            # A shard of DCP ends as such a file does.
            if file.suffix != ".distcp" and file.is_file() and zipfile.is_zipfile(file):
                names = {PurePath(name).name for name in zipfile.ZipFile(file).namelist()}
                if "data.pkl" in names and "constants.pkl" not in names:  # that of TorchScript
                    return True
    return False


def _is_taken(checkpoint: ProgramCheckpoint, target: Path, run_id: str) -> bool:
    """Return whether `target` has the same bytes as the program's checkpoint has now.

    The program may have written other bytes in an earlier segment.
    """
    with suppress(CheckpointError, OSError):
        sizes = {file.path: file.size for file in read_manifest(target).files}
        if sizes == {name: size for name, (size, _) in checkpoint.files().items()}:
            taken = verify_checkpoint(target, run_id=run_id).files
            if all(sha256_of_file(checkpoint.base / file.path) == file.sha256 for file in taken):
                checkpoint.require_unchanged()
                return True
    return False


def _copy_file(source: Path, target: Path) -> None:
    """Copy a file; on file systems that support it, both files share their bytes."""
    with source.open("rb") as read, target.open("xb") as written:
        try:
            while os.copy_file_range(read.fileno(), written.fileno(), _PIECE):
                pass
        except OSError:  # other file systems, or a kernel that cannot
            written.seek(0)
            written.truncate()
            read.seek(0)
            shutil.copyfileobj(read, written, 1 << 20)
        written.flush()
        os.fsync(written.fileno())
