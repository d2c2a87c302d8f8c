"""Read, write and verify a checkpoint's manifest: the size and the digests of each of its files.

The trainer writes the manifest last, so a directory without one is not a checkpoint. Resuming and storing
read it first. The trainer alone knows the contents of the files.
"""

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self

from pydantic import FailFast, model_validator
from pydantic.dataclasses import dataclass

from trainyard.errors import CheckpointError, DamagedFileError
from trainyard.run.atomic_files import FileDigests, sha256_of_file, write_json_atomically
from trainyard.run.directory import step_of
from trainyard.run.record_models import (
    OF_A_FILE,
    Count,
    Digest,
    Name,
    Number,
    RelativePath,
    SchemaNumber,
    Truth,
    validate_record,
)
from trainyard.run.untrusted_files import is_utf8, open_regular, parse_json_object, read_bytes

MANIFEST_NAME = "manifest.json"


def is_complete(checkpoint: Path) -> bool:
    """Return whether the folder is a checkpoint whose save ended: its manifest is written last."""
    return (checkpoint / MANIFEST_NAME).is_file()


@dataclass(frozen=True, config=OF_A_FILE)
class ManifestFile:
    """One file of a checkpoint."""

    path: RelativePath
    """Relative to the checkpoint's directory, with forward slashes."""
    size: Count
    """Bytes."""
    sha256: Digest
    """Lower-case hex."""

    @classmethod
    def of(cls, path: str, digests: FileDigests) -> Self:
        """Return the entry of the file `path` whose bytes went through `digests`."""
        return cls(path, digests.size, digests.sha256)

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "sha256": self.sha256}


@dataclass(frozen=True, config=OF_A_FILE)
class CheckpointManifest:
    """The files of a complete checkpoint."""

    schema: SchemaNumber = field(default=1, kw_only=True)
    step: Count
    run_id: Name
    created: Number
    """Unix seconds."""
    files: Annotated[tuple[ManifestFile, ...], FailFast()]
    is_file: Truth = False
    """The checkpoint is its only file, as a program wrote it, and not the folder with that file."""

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if len({file.path for file in self.files}) < len(self.files):
            raise ValueError("a file is listed twice")
        if self.is_file and len(self.files) != 1:
            raise ValueError(f"is_file is true, but {len(self.files)} files are listed")
        return self

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": self.schema,
            "step": self.step,
            "run_id": self.run_id,
            "created": self.created,
            "files": [file.to_json() for file in self.files],
            **({"is_file": True} if self.is_file else {}),
        }


def describe_files(
    directory: Path, known: Iterable[ManifestFile] = (), elsewhere: Iterable[ManifestFile] = ()
) -> tuple[ManifestFile, ...]:
    """Describe every file below `directory` except the manifest itself, sorted by name.

    `known` files were hashed while they were written, and are not read again. Raises CheckpointError when the
    directory does not have them with that size. Files `elsewhere` are in the folders of other machines.
    """
    hashed = {file.path: file for file in known}
    paths = sorted(p for p in directory.rglob("*") if p.is_file() and p != directory / MANIFEST_NAME)
    sizes = {p.relative_to(directory).as_posix(): p.stat().st_size for p in paths}
    if odd := next((name for name in sizes if not is_utf8(name)), None):
        raise CheckpointError(f"{directory}: the name {odd!r} is not UTF-8, so no store can hold the file")
    for name, file in hashed.items():
        if sizes.get(name) != file.size:
            raise CheckpointError(f"{directory / name}: does not have the {file.size:,} bytes just written")
    found = [
        hashed.get(name) or ManifestFile(name, size, sha256_of_file(directory / name))
        for name, size in sizes.items()
    ]
    return tuple(sorted((*found, *elsewhere), key=lambda file: PurePosixPath(file.path)))


def is_shard(name: str) -> bool:
    """Return whether `name` is a shard, which each process writes; the main one writes all other files."""
    return PurePosixPath(name).suffix == ".distcp"


def missing_files(directory: Path, manifest: CheckpointManifest) -> tuple[ManifestFile, ...]:
    """Return the files of `manifest` that the directory does not have; no file is read."""
    return tuple(file for file in manifest.files if not (directory / file.path).exists())


def write_manifest(directory: Path, manifest: CheckpointManifest) -> None:
    """Mark the checkpoint in `directory` as complete by writing its manifest."""
    write_json_atomically(directory / MANIFEST_NAME, manifest.to_json())


def read_manifest(directory: Path) -> CheckpointManifest:
    """Return the manifest of the checkpoint in `directory`.

    Raises CheckpointError when it is missing, damaged or has another format.
    """
    return read_described_manifest(directory)[0]


def read_described_manifest(directory: Path) -> tuple[CheckpointManifest, ManifestFile]:
    """Return the manifest as `read_manifest` does, and the description of the manifest file that was read."""
    path = directory / MANIFEST_NAME
    try:
        content = read_bytes(path, links=False)
    except FileNotFoundError:
        raise CheckpointError(f"{directory}: no {MANIFEST_NAME}, the save was never completed") from None
    except DamagedFileError as error:
        raise CheckpointError(str(error)) from None
    described = ManifestFile(MANIFEST_NAME, len(content), hashlib.sha256(content).hexdigest())
    return parse_checkpoint_manifest(content, str(path)), described


def parse_checkpoint_manifest(content: bytes, name: str) -> CheckpointManifest:
    """Parse the bytes of a manifest. Raises CheckpointError naming `name` when they are not one."""
    try:
        return validate_record(CheckpointManifest, parse_json_object(content, name))
    except DamagedFileError as error:
        raise CheckpointError(str(error)) from None
    except ValueError as error:
        raise CheckpointError(f"{name}: not a readable manifest ({error})") from None


def verify_checkpoint(
    directory: Path,
    *,
    run_id: str | None = None,
    digest_of: Callable[[Path], str] = sha256_of_file,
    is_part: bool = False,
) -> CheckpointManifest:
    """Read every byte of the checkpoint in `directory`, compare it with its manifest, and return that.

    Raises CheckpointError naming the first file that is missing or has another size or digest; and when the
    manifest belongs to another step than the directory's name, or to another run than `run_id`, if given.
    With `is_part`, shards that are not here are on another machine.
    """
    manifest = read_manifest(directory)
    if step_of(directory.name) not in (None, manifest.step):
        raise CheckpointError(f"{directory}: its {MANIFEST_NAME} is of step {manifest.step}")
    if run_id is not None and manifest.run_id != run_id:
        raise CheckpointError(f"{directory}: is of run {manifest.run_id}, not of run {run_id}")
    gone = missing_files(directory, manifest) if is_part else ()
    elsewhere = {file.path for file in gone if is_shard(file.path)}
    for expected in manifest.files:
        if expected.path in elsewhere:
            continue
        path = directory / expected.path
        size = regular_file_size(path)
        if size != expected.size:
            raise CheckpointError(f"{path}: {size:,} bytes, the manifest says {expected.size:,}")
        if (digest := digest_of(path)) != expected.sha256:
            raise CheckpointError(
                f"{path}: SHA-256 {digest[:12]}…, the manifest says {expected.sha256[:12]}…"
            )
    return manifest


def regular_file_size(path: Path) -> int:
    """Return the size of a regular file. Raises CheckpointError for a link and anything else."""
    try:
        with open_regular(path, links=False) as file:
            return os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing") from None
    except DamagedFileError as error:
        raise CheckpointError(str(error)) from None
