"""Inspect a run in the store for the proof: its number, its verification and its stored steps.

A failure is part of the result and not an error, because the proof shows it. Nothing is changed.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from trainyard.artifacts.record.chain import newest_manifest
from trainyard.artifacts.record.manifest import RunManifest
from trainyard.artifacts.record.run_numbers import number_of_run, owner_of
from trainyard.artifacts.store.layout import checkpoint_prefix, checkpoint_step_of, identity_key
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.verify.verify import Depth, Verification, verify_run
from trainyard.errors import CheckpointError, ServiceError, TrainyardError, VerificationError
from trainyard.run.checkpoint_manifest import (
    MANIFEST_NAME,
    parse_checkpoint_manifest,
    read_described_manifest,
    verify_checkpoint,
)
from trainyard.run.directory import RunDirectory
from trainyard.run.node_folder import keeps_parts
from trainyard.run.progress import UNSEEN, Progress

_READ_BACK_BYTES = 10_000_000_000
"""Runs up to this size are read back completely unless a depth is given."""
_MANIFESTS_AT_ONCE = 8


@dataclass(frozen=True)
class StoredCheckpoint:
    """A stored checkpoint, described by its own manifest."""

    manifest_sha256: str = ""
    run_id: str = ""
    step: int = -1
    problem: str | None = None
    """Why its manifest does not match it."""


@dataclass(frozen=True)
class Inspection:
    """The result of the inspection; None for facts that were not found."""

    run_number: int | None = None
    verification: Verification | None = None
    checkpoints: Mapping[int, StoredCheckpoint] = field(default_factory=dict)
    """The listed checkpoints, by the step in their keys."""
    trouble: str | None = None
    """Why the store could not be read, or does not fit the directory."""
    unreachable: bool = False
    """The store is unreachable, so trying again later may help."""
    taken: bool = False
    """The run number belongs to another run."""
    on_disk: Mapping[int, str] = field(default_factory=dict)
    """The SHA-256 of each local checkpoint's manifest, by step."""
    damaged: tuple[Path, ...] = ()
    """Local checkpoints that are incomplete, or differ from the store although the store is intact."""


def inspect_run(
    store: Store,
    run_id: str,
    *,
    directory: RunDirectory,
    run_number: int | None,
    depth: Depth | None,
    progress: Progress = UNSEEN,
) -> Inspection:
    """Verify the run in `directory` against the store; without `run_number`, find the number by `run_id`."""
    number = run_number
    try:
        number = number_of_run(store, run_id) if number is None else number
        if number is None:
            require_there(store)
            return Inspection()
        owner = owner_of(store, number)
        if owner not in (None, run_id):
            trouble = f"run number {number} in {store.url} belongs to run {owner or '(unreadable)'}"
            return Inspection(number, trouble=f"{trouble}; this is run {run_id}", taken=True)
        return _inspect(store, run_id, directory, number=number, depth=depth, progress=progress)
    except TrainyardError as error:
        return Inspection(number, trouble=str(error), unreachable=isinstance(error, ServiceError))


def require_there(store: Store) -> None:
    """Raise VerificationError when the store is a folder that does not exist, which is not an empty store."""
    try:
        next(iter(store.list_objects(identity_key(0))), None)
    except ServiceError as error:
        raise VerificationError(str(error)) from None


def _inspect(
    store: Store,
    run_id: str,
    directory: RunDirectory,
    *,
    number: int,
    depth: Depth | None,
    progress: Progress,
) -> Inspection:
    _, manifest, _ = newest_manifest(store, number)
    if depth is None:
        total = sum(entry.size for entry in manifest.objects) if manifest else 0
        depth = Depth.FULL if total <= _READ_BACK_BYTES else Depth.SAMPLE
    verification = verify_run(store, number, depth=depth, run_directory=directory, progress=progress)
    checkpoints, on_disk = _stored_checkpoints(store, manifest), _manifests_of(directory)
    damaged: tuple[Path, ...] = ()
    if verification.store_complete and not verification.ok:
        damaged = tuple(
            directory.checkpoint(step)
            for step, digest in on_disk.items()
            if step in checkpoints
            and (digest != checkpoints[step].manifest_sha256 or not _is_complete(directory, step, run_id))
        )
    return Inspection(
        run_number=number,
        verification=verification,
        checkpoints=checkpoints,
        on_disk=on_disk,
        damaged=damaged,
    )


def _manifests_of(directory: RunDirectory) -> dict[int, str]:
    """Return each manifest's digest by step; empty for one that is missing or unreadable."""
    found = {}
    for step in directory.checkpoint_steps():
        try:
            found[step] = read_described_manifest(directory.checkpoint(step))[1].sha256
        except CheckpointError:
            found[step] = ""
    return found


def _is_complete(directory: RunDirectory, step: int, run_id: str) -> bool:
    try:
        verify_checkpoint(directory.checkpoint(step), run_id=run_id, is_part=keeps_parts(directory))
    except (CheckpointError, OSError):
        return False
    return True


def _stored_checkpoints(store: Store, manifest: RunManifest | None) -> dict[int, StoredCheckpoint]:
    if manifest is None:
        return {}
    listed = {entry.key: entry.sha256 for entry in manifest.objects}
    steps = sorted({step for key in listed if (step := checkpoint_step_of(key)) is not None})
    prefixes = [checkpoint_prefix(manifest.run_number, step) for step in steps]
    with ThreadPoolExecutor(_MANIFESTS_AT_ONCE) as pool:
        found = pool.map(lambda prefix: _stored_checkpoint(store, prefix, listed), prefixes)
        return dict(zip(steps, found, strict=True))


def _stored_checkpoint(store: Store, prefix: str, listed: Mapping[str, str]) -> StoredCheckpoint:
    """Return the checkpoint under `prefix`; `listed` are the digests in the run's manifest."""
    content = store.read_object(prefix + MANIFEST_NAME)
    if content is None:
        return StoredCheckpoint(problem=f"has no {MANIFEST_NAME}")
    try:
        manifest = parse_checkpoint_manifest(content, prefix + MANIFEST_NAME)
    except CheckpointError as error:
        return StoredCheckpoint(problem=f"cannot be read: {error}")
    other = [file.path for file in manifest.files if listed.get(prefix + file.path) != file.sha256]
    problem = f"differs from its {MANIFEST_NAME} in {other[0]}" if other else None
    return StoredCheckpoint(sha256(content).hexdigest(), manifest.run_id, manifest.step, problem)
