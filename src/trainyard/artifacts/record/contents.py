"""Collect what a run directory has for the store: its complete checkpoints, newest first, and its records.

Nothing is hashed or sent here. Records may still be growing, so they are copied first, and the copies are
hashed and sent. `tensorboard/` is omitted because metrics.jsonl has the same rows, and `report/` because it
describes the stored run.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from trainyard.artifacts.store.layout import checkpoint_prefix, metrics_key, records_prefix, run_prefix
from trainyard.config.secret_filter import SecretFilter
from trainyard.errors import CheckpointError, ConfigError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import (
    MANIFEST_NAME,
    ManifestFile,
    is_complete,
    missing_files,
    read_described_manifest,
    regular_file_size,
)
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.node_folder import keeps_parts
from trainyard.run.records import iterate_rows
from trainyard.run.run_settings import read_settings
from trainyard.run.untrusted_files import is_utf8, open_regular, read_bytes

RECORDS = "records"
_CHUNK_BYTES = 1 << 20
_SCANNED_BYTES = 16 << 20


@dataclass(frozen=True)
class Item:
    """One file and the object it becomes."""

    key: str
    path: Path
    claimed: ManifestFile | None = None
    """The file's entry in the checkpoint's manifest; for the manifest itself, its own size and digest.

    None for files that no manifest lists.
    """
    is_elsewhere: bool = False
    """Whether another machine has the file and stores it; `path` does not exist here."""

    @property
    def name(self) -> str:
        """The local path; for copied records, the key."""
        return str(self.path) if self.claimed else self.key


@dataclass(frozen=True)
class Group:
    """Files that are stored together: a checkpoint, or the records."""

    name: str
    items: tuple[Item, ...]
    marker: Item | None = None
    """The file that marks the others as complete; it is stored last."""

    @property
    def is_gone(self) -> bool:
        """Return whether the run removed the checkpoint meanwhile: its marker first, then its folder."""
        if self.marker is not None:
            return not self.marker.path.exists()
        return bool(self.items) and not self.items[0].path.parent.exists()

    @property
    def elsewhere(self) -> tuple[Item, ...]:
        """The files that other machines have and store."""
        return tuple(item for item in self.items if item.is_elsewhere)

    @property
    def all_items(self) -> tuple[Item, ...]:
        return (*self.items, self.marker) if self.marker else self.items

    @property
    def size(self) -> int:
        """Total bytes of the files that exist now."""
        total = 0
        for item in self.all_items:
            with contextlib.suppress(OSError):  # the run removed it meanwhile
                total += item.path.stat().st_size
        return total


@dataclass(frozen=True)
class Contents:
    """Everything that a run has for the store."""

    run: dict[str, Any]
    """`run.json`."""
    groups: tuple[Group, ...]
    problems: tuple[str, ...] = ()
    """Checkpoints that do not match their manifest; they are not in `groups`."""
    notes: tuple[str, ...] = ()
    """Directories of saves that were never completed."""
    version: int | None = None
    """Version of the manifest that will list it, when the run is still going."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """`config.yaml`; empty if it cannot be read."""

    @property
    def checkpoints(self) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if group.name != RECORDS)


def contents_of(
    directory: RunDirectory, run_number: int, scratch: Path, *, version: int | None = None
) -> Contents:
    """Collect the contents of `directory` as run `run_number`; records are copied into `scratch`.

    `version` is the version of the manifest that will list a run that is still going. Its records then get
    keys that no later sync replaces, and include only what resuming needs, without logs and the JSON metrics
    document. Raises ConfigError when `directory` is not a run directory, TrainyardError when its `run.json`
    is damaged or one of its records is a link, a pipe or a folder.
    """
    run = read_run(directory.run_file)
    files = [directory.run_file, directory.config_file, directory.metrics_file, directory.events_file]
    files += [directory.evaluations_file]
    logs = _logs(directory) if version is None else []
    by_name = {path: is_utf8(path.relative_to(directory.path).as_posix()) for path in logs}
    files += [path for path, is_name in by_name.items() if is_name]
    prefix = run_prefix(run_number) if version is None else records_prefix(run_number, version)
    records = tuple(_records(directory, files, prefix=prefix, scratch=scratch))
    if (copied := scratch / directory.run_file.name).exists():
        run = read_run(copied)  # the copy that is stored
    metrics = () if version is not None else (_metrics_item(run, run_number, scratch),)
    groups, problems, notes = _checkpoint_groups(directory, run_number)
    notes += [f"{path}: skipped, because its name is not UTF-8" for path in logs if not by_name[path]]
    notes += _secret_notes([path for path in logs if by_name[path]], directory, scratch)
    groups.append(Group(RECORDS, (*records, *metrics)))
    return Contents(run, tuple(groups), tuple(problems), tuple(notes), version, _config(scratch))


def _checkpoint_groups(directory: RunDirectory, run_number: int) -> tuple[list[Group], list[str], list[str]]:
    """Return the complete checkpoints, newest first, problems of others, and notes on partial saves."""
    groups, problems, notes = list[Group](), list[str](), list[str]()
    is_part = keeps_parts(directory)
    for step in reversed(directory.checkpoint_steps()):
        path = directory.checkpoint(step)
        try:
            if (link := link_within(directory.path, path / MANIFEST_NAME)) is not None:
                raise CheckpointError(f"{link} is a symbolic link")
            if is_complete(path):
                groups.append(checkpoint_group(path, run_number, step, is_part=is_part))
            else:
                notes.append(f"{path}: skipped, because it has no {MANIFEST_NAME}: the save never ended")
        except CheckpointError as error:
            problems.append(f"checkpoint-{step} was not uploaded: {error}")
    return groups, problems, notes


def hash_item(item: Item) -> str:
    """Return the file's SHA-256. Raises CheckpointError when it does not match the checkpoint's manifest."""
    try:
        sha256 = sha256_of_file(item.path)
    except OSError as error:
        raise CheckpointError(f"{item.path}: {error.strerror}") from None
    require_claimed(item, sha256)
    return sha256


def require_claimed(item: Item, sha256: str) -> None:
    """Raise CheckpointError when the file's digest differs from the one in its checkpoint's manifest."""
    if item.claimed is None or sha256 == item.claimed.sha256:
        return
    if item.claimed.path == MANIFEST_NAME:
        raise CheckpointError(f"{item.path}: was replaced while the checkpoint was stored; sync again")
    raise CheckpointError(
        f"{item.path}: SHA-256 {sha256[:12]}…, the checkpoint's manifest says {item.claimed.sha256[:12]}…"
    )


def checkpoint_group(path: Path, run_number: int, step: int | None = None, *, is_part: bool = False) -> Group:
    """Return the checkpoint in the directory `path`, of `step` or of the step in its manifest.

    With `is_part`, files that are not here are on another machine. Raises CheckpointError when the manifest
    is not readable, or a file is missing or has another size.
    """
    manifest, described = read_described_manifest(path)
    if step is None:
        step = manifest.step
    elif step != manifest.step:
        raise CheckpointError(
            f"{path}: its {MANIFEST_NAME} says step {manifest.step}, its name says step {step}"
        )
    keys = checkpoint_prefix(run_number, step)
    elsewhere = set(missing_files(path, manifest)) if is_part else set()
    items = tuple(
        _checkpoint_item(path, keys, file, is_elsewhere=file in elsewhere) for file in manifest.files
    )
    marker = Item(keys + MANIFEST_NAME, path / MANIFEST_NAME, described)
    return Group(f"checkpoint-{step}", items, marker=marker)


def metrics_chunks(source: Path, *, run_id: str, run_number: int) -> Iterator[bytes]:
    """Yield the rows of a JSON-lines file as the bytes of one JSON document, in constant memory."""
    head = json.dumps({"run_id": run_id, "run_number": run_number})[:-1]
    yield f'{head}, "rows": ['.encode()
    for index, row in enumerate(iterate_rows(source)):
        yield (("," if index else "") + "\n" + json.dumps(row, ensure_ascii=False)).encode()
    yield b"\n]}\n"


def link_within(root: Path, path: Path) -> Path | None:
    """Return the first symbolic link on the path from `root` down to `path`; None if there is none."""
    below = path.relative_to(root).parts
    steps = (root.joinpath(*below[: count + 1]) for count in range(len(below)))
    return next((step for step in steps if step.is_symlink()), None)


def _checkpoint_item(directory: Path, keys: str, file: ManifestFile, *, is_elsewhere: bool) -> Item:
    relative, path = PurePosixPath(file.path), directory / file.path
    if relative.is_absolute() or ".." in relative.parts:
        raise CheckpointError(f"{directory / MANIFEST_NAME}: {file.path} is outside the checkpoint")
    if is_elsewhere:
        return Item(keys + file.path, path, file, is_elsewhere=True)
    if (size := regular_file_size(path)) != file.size:
        raise CheckpointError(f"{path}: {size:,} bytes, the manifest says {file.size:,}")
    return Item(keys + file.path, path, file)


def _records(directory: RunDirectory, files: Iterable[Path], *, prefix: str, scratch: Path) -> Iterator[Item]:
    for path in files:
        relative = path.relative_to(directory.path)
        copy = scratch / relative
        copy.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError), open_regular(path, links=False) as source:
            with copy.open("wb") as target:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
            yield Item(prefix + relative.as_posix(), copy)


def _logs(directory: RunDirectory) -> list[Path]:
    """Return the regular files below `logs/`. Links and sockets that trackers keep there are not stored."""
    found = sorted(directory.logs.rglob("*")) if directory.logs.is_dir() else []
    return [path for path in found if link_within(directory.path, path) is None and path.is_file()]


def _secret_notes(logs: Iterable[Path], directory: RunDirectory, scratch: Path) -> Iterator[str]:
    """Yield a warning for each file in `logs/` with a secret in its first 16 MiB; none is changed."""
    secrets = SecretFilter.of({"environment": dict(os.environ)})
    for path in logs:
        with (
            contextlib.suppress(FileNotFoundError),
            (scratch / path.relative_to(directory.path)).open("rb") as file,
        ):
            if secrets.mask_bytes(content := file.read(_SCANNED_BYTES)) != content:
                yield f"{path}: the program wrote a secret into it, and it is stored as it is"


def _config(scratch: Path) -> dict[str, Any]:
    path = scratch / "config.yaml"
    with contextlib.suppress(ConfigError, FileNotFoundError):
        return read_settings(read_bytes(path))
    return {}


def _metrics_item(run: dict[str, Any], run_number: int, scratch: Path) -> Item:
    target, source = scratch / "metrics.json", scratch / "metrics.jsonl"
    with target.open("wb") as file:
        file.writelines(metrics_chunks(source, run_id=str(run["run_id"]), run_number=run_number))
    return Item(metrics_key(run_number), target)
