"""A checkpoint's manifest: the size and the digests of each of its files. No manifest, no checkpoint.

The trainer writes it last, resuming and storing read it first. What the files hold is the trainer's affair.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

from trainyard.errors import CheckpointError
from trainyard.run.digests import FileDigests, PartDigests, digests_of_file, require_digest
from trainyard.run.directory import step_of
from trainyard.run.files import sha256_of_file, write_json_atomically

MANIFEST_NAME = "manifest.json"
_SCHEMA = 1


@dataclass(frozen=True)
class ManifestFile:
    """One file of a checkpoint."""

    path: str
    """Relative to the checkpoint's directory, with forward slashes."""
    size: int
    """Bytes."""
    sha256: str
    """Lower-case hex."""
    parts: PartDigests | None = None
    """Of a large file: it can be compared part by part, too."""

    @classmethod
    def of(cls, path: str, digests: FileDigests) -> Self:
        """The file `path` whose bytes went through `digests`."""
        return cls(path, digests.size, digests.sha256, digests.parts)

    def to_json(self) -> dict[str, Any]:
        parts = {"blake3": self.parts.to_json()} if self.parts else {}
        return {"path": self.path, "size": self.size, "sha256": self.sha256, **parts}


@dataclass(frozen=True)
class CheckpointManifest:
    """What a whole checkpoint consists of."""

    step: int
    run_id: str
    created: float
    """Unix seconds."""
    files: tuple[ManifestFile, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": _SCHEMA,
            "step": self.step,
            "run_id": self.run_id,
            "created": self.created,
            "files": [file.to_json() for file in self.files],
        }


def describe_files(directory: Path, known: Iterable[ManifestFile] = ()) -> tuple[ManifestFile, ...]:
    """Every file below `directory` except the manifest itself, in order of name.

    `known` were hashed while they were written, and are not read again; CheckpointError when the directory
    does not have them at their size.
    """
    hashed = {file.path: file for file in known}
    paths = sorted(p for p in directory.rglob("*") if p.is_file() and p.name != MANIFEST_NAME)
    sizes = {p.relative_to(directory).as_posix(): p.stat().st_size for p in paths}
    for name, file in hashed.items():
        if sizes.get(name) != file.size:
            raise CheckpointError(f"{directory / name}: {file.size:,} bytes were written, and are not there")
    return tuple(
        hashed.get(name) or ManifestFile.of(name, digests_of_file(directory / name)) for name in sizes
    )


def write_manifest(directory: Path, manifest: CheckpointManifest) -> None:
    """Mark the checkpoint in `directory` as whole."""
    write_json_atomically(directory / MANIFEST_NAME, manifest.to_json())


def read_manifest(directory: Path) -> CheckpointManifest:
    """The manifest of the checkpoint in `directory`.

    Raises CheckpointError when there is none, or it is torn or of another form.
    """
    return read_described_manifest(directory)[0]


def read_described_manifest(directory: Path) -> tuple[CheckpointManifest, ManifestFile]:
    """The manifest as `read_manifest` gives it, and what its file is, of the very bytes that were read."""
    path = directory / MANIFEST_NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{directory}: no {MANIFEST_NAME}, the save was never completed") from None
    except OSError as error:
        raise CheckpointError(f"{path}: not a readable manifest ({error})") from None
    described = ManifestFile(MANIFEST_NAME, len(content), hashlib.sha256(content).hexdigest())
    return parse_manifest(content, str(path)), described


def parse_manifest(content: bytes, name: str) -> CheckpointManifest:
    """Read the bytes of a manifest. Raises CheckpointError naming `name` when they are not one."""
    try:
        value = json.loads(content)
        files = tuple(_manifest_file(entry) for entry in value["files"])
        if len({file.path for file in files}) < len(files):
            raise ValueError("a file is listed twice")
        return CheckpointManifest(int(value["step"]), str(value["run_id"]), float(value["created"]), files)
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise CheckpointError(f"{name}: not a readable manifest ({error})") from None


def _require_own(manifest: CheckpointManifest, directory: Path, run_id: str | None) -> None:
    if step_of(directory.name) not in (None, manifest.step):
        raise CheckpointError(f"{directory}: its {MANIFEST_NAME} is of step {manifest.step}")
    if run_id is not None and manifest.run_id != run_id:
        raise CheckpointError(f"{directory}: is of run {manifest.run_id}, not of run {run_id}")


def _manifest_file(entry: dict[str, Any]) -> ManifestFile:
    path = PurePosixPath(entry["path"])
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{path} is outside the checkpoint")
    size = int(entry["size"])
    if size < 0:
        raise ValueError(f"{path} is said to have {size} bytes")
    parts = PartDigests.from_json(entry["blake3"], size) if "blake3" in entry else None
    return ManifestFile(str(path), size, require_digest(entry["sha256"]), parts)


def verify_checkpoint(
    directory: Path, *, run_id: str | None = None, digest_of: Callable[[Path], str] = sha256_of_file
) -> CheckpointManifest:
    """Read every byte of the checkpoint in `directory` and compare it with its manifest, which is returned.

    Raises CheckpointError naming the first file that is missing, of another size or of another digest; and
    when the manifest is of another step than the directory's name, or of another run than `run_id`, if given.
    """
    manifest = read_manifest(directory)
    _require_own(manifest, directory, run_id)
    for expected in manifest.files:
        path = directory / expected.path
        if not path.is_file():
            raise CheckpointError(f"{path}: missing")
        size = path.stat().st_size
        if size != expected.size:
            raise CheckpointError(f"{path}: {size:,} bytes, the manifest says {expected.size:,}")
        if (digest := digest_of(path)) != expected.sha256:
            raise CheckpointError(
                f"{path}: SHA-256 {digest[:12]}…, the manifest says {expected.sha256[:12]}…"
            )
    return manifest
