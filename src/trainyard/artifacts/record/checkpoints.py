"""List what a run's manifest has: its checkpoints, with the digest that identifies each, and its records.

Names and sizes only; `comparison` checks the objects. The records that a run must have are computed from the
run (its directory, or its provenance), never from the stored objects: a shortened manifest must not require
less.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from trainyard.artifacts.record.contents import Group
from trainyard.artifacts.record.manifest import ManifestObject, RunManifest
from trainyard.artifacts.store.layout import (
    belongs_to_checkpoint,
    checkpoint_prefix,
    checkpoint_step_of,
    identity_key,
    metrics_key,
)
from trainyard.artifacts.store.object_store import Store
from trainyard.errors import CheckpointError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import MANIFEST_NAME, parse_checkpoint_manifest
from trainyard.run.judged_records import RECORDS


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in the store, as the run's manifest describes it."""

    run_number: int
    step: int | None
    """None for a checkpoint file whose step is unknown."""
    objects: tuple[ManifestObject, ...]

    @property
    def name(self) -> str:
        return self.prefix.rstrip("/").rpartition("/")[2]

    @property
    def prefix(self) -> str:
        """The prefix of its objects' keys."""
        return checkpoint_prefix(self.run_number, self.step)

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(entry.size for entry in self.objects)

    @property
    def marker(self) -> ManifestObject | None:
        """The checkpoint's own manifest, which the trainer wrote last; a single file has none."""
        return next((entry for entry in self.objects if entry.key == self.prefix + MANIFEST_NAME), None)

    @property
    def digest(self) -> str:
        """The SHA-256 of its own manifest, which has every file's digest; else of a list of the digests."""
        if self.marker is not None:
            return self.marker.sha256
        lines = (f"{entry.sha256}  {entry.key.removeprefix(self.prefix)}\n" for entry in self.objects)
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def checkpoints_of(manifest: RunManifest) -> list[Checkpoint]:
    """Return the checkpoints of a run, newest first; one of unknown step comes last."""
    found: dict[int | None, list[ManifestObject]] = {}
    for entry in manifest.objects:
        if belongs_to_checkpoint(entry.key):
            found.setdefault(checkpoint_step_of(entry.key), []).append(entry)
    checkpoints = [
        Checkpoint(manifest.run_number, step, tuple(sorted(entries, key=lambda entry: entry.key)))
        for step, entries in found.items()
    ]
    return sorted(checkpoints, key=lambda each: -1 if each.step is None else each.step, reverse=True)


def is_pruned(group: Group, manifest: RunManifest | None) -> bool:
    """Return whether retention removed this checkpoint, so that it must not be stored again."""
    if manifest is None or group.marker is None or not manifest.pruned:
        return False
    try:
        return sha256_of_file(group.marker.path) in {each.digest for each in manifest.pruned}
    except OSError:
        return False  # the run removed it meanwhile


def removed_steps(manifest: RunManifest) -> frozenset[int]:
    """Return the steps that retention is removing or has removed, without steps that were stored again."""
    live = {checkpoint_step_of(entry.key) for entry in manifest.objects}
    return frozenset(each.step for each in manifest.pruned if each.step not in live)


def own_manifest_problem(store: Store, checkpoint: Checkpoint) -> str | None:
    """Return the problem of the checkpoint's own manifest; None if there is none.

    The files of document 004 have no manifest of their own.
    """
    marker = checkpoint.marker
    if marker is None:
        return None
    content = store.read_object(marker.key)
    if content is None:
        return f"{marker.key}: missing in the store"
    if hashlib.sha256(content).hexdigest() != marker.sha256:
        return f"{marker.key}: its bytes in the store differ from the run's manifest"
    return _difference(content, checkpoint)


def _difference(content: bytes, checkpoint: Checkpoint) -> str | None:
    name = checkpoint.prefix + MANIFEST_NAME
    try:
        manifest = parse_checkpoint_manifest(content, name)
    except CheckpointError as error:
        return str(error)
    if manifest.step != checkpoint.step:
        return f"{name}: the checkpoint of step {checkpoint.step} is a copy of step {manifest.step}"
    listed = {entry.key: (entry.size, entry.sha256) for entry in checkpoint.objects}
    own = {checkpoint.prefix + file.path: (file.size, file.sha256) for file in manifest.files}
    listed.pop(name)
    wrong = sorted(key for key in listed.keys() | own.keys() if listed.get(key) != own.get(key))
    return f"{wrong[0]}: {name} and the run's manifest differ about it" if wrong else None


def is_loose(manifest: RunManifest) -> bool:
    """Return whether the manifest lists only a checkpoint and its metrics, stored without a run directory."""
    number = manifest.run_number
    known = (identity_key(number), metrics_key(number))
    return not manifest.is_open and all(
        entry.key in known or belongs_to_checkpoint(entry.key) for entry in manifest.objects
    )


def _required_records(manifest: RunManifest, on_disk: Iterable[str]) -> list[str]:
    number, here = manifest.run_number, tuple(on_disk)
    if is_loose(manifest) and not here:
        return [identity_key(number)]
    names = [name for name in RECORDS if name in here or _is_required(name, manifest)]
    documents = [] if manifest.is_open else [metrics_key(number)]
    return [identity_key(number), *(manifest.records_prefix + name for name in names), *documents]


def missing_records(manifest: RunManifest, on_disk: Iterable[str] = ()) -> list[str]:
    """Return a problem for each key that the run must have and the manifest does not list.

    `on_disk` are the judged records in its directory.
    """
    known, required = manifest.by_key(), _required_records(manifest, on_disk)
    if not is_loose(manifest):
        required += [each.prefix + MANIFEST_NAME for each in checkpoints_of(manifest)]
    return [
        f"{key}: the run must have it, and the manifest does not list it"
        for key in required
        if key not in known
    ]


def _is_required(name: str, manifest: RunManifest) -> bool:
    if name in ("run.json", "evaluations.jsonl"):
        return name == "run.json"
    if name == "config.yaml":
        return bool(manifest.provenance.get("config_sha256"))
    return bool(manifest.outcome) and not manifest.is_open  # a run that ended has these records
