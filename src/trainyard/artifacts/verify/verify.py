"""Verify that the store holds what the trainer wrote: compare manifest, store and, if given, disk.

`comparison` compares each object. Nothing is changed. The gateway reaches the store; its ServiceError passes
through.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from trainyard.artifacts.record.chain import listed_objects, newest_manifest
from trainyard.artifacts.record.checkpoints import (
    checkpoints_of,
    is_loose,
    missing_records,
    own_manifest_problem,
    removed_steps,
)
from trainyard.artifacts.record.local_paths import records_of
from trainyard.artifacts.record.manifest import RunManifest
from trainyard.artifacts.record.run_numbers import has_id
from trainyard.artifacts.record.statement import resolved_config, statement_problems
from trainyard.artifacts.record.sync_report import Verdict
from trainyard.artifacts.store.layout import attempt_of, belongs_to_checkpoint, checkpoint_step_of, id_key
from trainyard.artifacts.store.object_store import Store, StoredObject
from trainyard.artifacts.verify.comparison import Depth, compare_objects
from trainyard.artifacts.verify.disk import DiskComparison, compare_disk
from trainyard.errors import CheckpointError, ConfigError, DamagedFileError, VerificationError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import verify_checkpoint
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.judged_records import RECORDS
from trainyard.run.node_folder import keeps_parts
from trainyard.run.progress import UNSEEN, Progress
from trainyard.run.run_settings import read_settings
from trainyard.run.untrusted_files import parse_json_object, same_json

__all__ = ["Depth", "LocalVerification", "Verification", "verify_directory", "verify_run"]
_OBJECTS_AT_ONCE = 8


@dataclass(frozen=True)
class Verification(Verdict):
    """The objects that were compared, and everything that differs."""

    objects_total: int
    """Objects in the manifest."""
    objects_verified: int
    """Those without a problem."""
    bytes_total: int
    problems: tuple[str, ...]
    run_id: str
    """Empty when there is no manifest."""
    manifest_key: str
    store_complete: bool = False
    """Whether the store itself has no problem; any problems are then on the disk."""
    notes: tuple[str, ...] = ()
    """Remarks that are not problems: objects still being uploaded or removed while the run was going."""
    depth: str = ""
    compared: str = ""
    """A sentence for people about the comparisons that were made."""
    unlisted_objects: tuple[str, ...] = ()
    """Keys of objects from an interrupted sync or removal: the store has them, and no manifest lists them."""
    records: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of each current record, by its name in the run directory."""


def verify_run(
    store: Store,
    run_number: int,
    *,
    depth: Depth,
    run_directory: RunDirectory | None = None,
    progress: Progress = UNSEEN,
) -> Verification:
    """Compare the stored objects of a run with the manifest and, if given, with the run's directory.

    The problems name every missing, extra, swapped, truncated or changed object. Raises ServiceError when the
    store cannot be reached, TrainyardError when `run_directory` is not a run directory.
    """
    progress.begin("listing the store")
    key, manifest, problems = newest_manifest(store, run_number)
    if manifest is None:
        return Verification(0, 0, 0, tuple(problems), "", key)
    # List after reading the manifest, so that objects which a sync adds meanwhile are listed and not missing.
    listed = listed_objects(store, run_number)
    notes, removals = _transient_objects(manifest, listed), removed_steps(manifest)
    being_removed = {key for key in listed if checkpoint_step_of(key) in removals}
    problems += _compare_names(manifest, listed.keys() - notes.keys()) + missing_records(manifest)
    own = {} if depth is Depth.LISTING else _compare_own_manifests(store, manifest)
    wrong = compare_objects(store, manifest.objects, listed, depth=depth, progress=progress)
    problems += _compare_provenance(store, manifest) or statement_problems(manifest)
    problems += _compare_configuration(store, manifest) + _compare_id(store, manifest)
    problems += [problem for key, problem in own.items() if key not in wrong]
    store_complete = not problems and not wrong
    disk = None
    if run_directory is not None:
        disk = compare_disk(run_directory, manifest, store=store.url, progress=progress)
        problems += [problem for problem in disk.problems if problem not in problems]
        wrong = {key: f"{key}: {answer}" for key, answer in disk.wrong.items()} | wrong
    return Verification(
        objects_total=len(manifest.objects),
        objects_verified=len(manifest.objects) - len(wrong),
        bytes_total=sum(entry.size for entry in manifest.objects),
        problems=(*problems, *(wrong[name] for name in sorted(wrong))),
        run_id=manifest.run_id,
        manifest_key=key,
        store_complete=store_complete,
        notes=(*(f"{key}: {notes[key]}" for key in sorted(notes)), *_notes_of(manifest)),
        depth=str(depth),
        compared=_comparison_text(depth, manifest, disk),
        unlisted_objects=tuple(sorted((listed.keys() & {*manifest.unlisted_objects}) | being_removed)),
        records=_records(manifest),
    )


def _compare_id(store: Store, manifest: RunManifest) -> list[str]:
    """Return a problem if the run is not found by its id; a run of an earlier version has no key."""
    try:
        if not manifest.run_key or has_id(store, manifest.run_id, manifest.run_key):
            return []
    except VerificationError as error:
        return [str(error)]
    return [f"{id_key(manifest.run_id)}: is not what this run wrote, so nothing finds the run by its id"]


def _notes_of(manifest: RunManifest) -> list[str]:
    name = f"run-{manifest.run_number}"
    if manifest.is_open:
        return [f"{name}: the run was still going when it was stored; its last records are not stored yet"]
    if is_loose(manifest):
        return [f"{name}: only a checkpoint and its metrics; no other record of the run is stored"]
    return []


def _records(manifest: RunManifest) -> dict[str, str]:
    prefix = manifest.records_prefix
    found = records_of(manifest)
    return {entry.key.removeprefix(prefix): entry.sha256 for entry in found if entry.key.startswith(prefix)}


def _comparison_text(depth: Depth, manifest: RunManifest, disk: DiskComparison | None) -> str:
    """Return a sentence about the comparisons; it names the disk only for files that were read there."""
    if depth is Depth.FULL:
        text = f"SHA-256 equal {'on disk, ' if disk else ''}in the store and in the manifest"
    else:
        sampled = ", a sample read back" if depth is Depth.SAMPLE else ""
        text = f"the store's own checksums equal {'disk and' if disk else 'the'} manifest{sampled}"
    rest = disk.text(manifest) if disk else ""
    return f"{text} ({rest})" if rest else text


def _compare_configuration(store: Store, manifest: RunManifest) -> list[str]:
    """Report a statement without the configuration that a sync would have put into it."""
    predicate, key = manifest.statement.get("predicate"), f"{manifest.records_prefix}config.yaml"
    if not isinstance(predicate, dict) or predicate.get("config") or key not in manifest.by_key():
        return []
    try:
        values = read_settings(store.read_object(key) or b"", key)
    except ConfigError:
        return []
    if not resolved_config(values, manifest.provenance):
        return []
    return [f"run-{manifest.run_number}: the statement lacks the configuration that is in {key}"]


@dataclass(frozen=True)
class LocalVerification(Verdict):
    """The result of comparing a run directory's checkpoints with their own manifests."""

    steps: tuple[int, ...]
    """Steps of the complete checkpoints."""
    problems: tuple[str, ...]
    parts: bool = False
    """Whether other machines have the rest of each checkpoint (`checkpointing.shared: false`)."""


def verify_directory(directory: RunDirectory, progress: Progress = UNSEEN) -> LocalVerification:
    """Read every byte of every checkpoint.

    It is a problem if no checkpoint is complete, or if one belongs to another run.
    """
    complete, problems = [], []
    run_id = str(read_run(directory.run_file)["run_id"]) if directory.run_file.is_file() else None
    parts = keeps_parts(directory)
    digest_of = partial(sha256_of_file, progress=progress)
    for step in directory.checkpoint_steps():
        try:
            path = directory.checkpoint(step)
            progress.begin(f"hashing {path.name}", sum(file.stat().st_size for file in path.iterdir()))
            manifest = verify_checkpoint(path, run_id=run_id, digest_of=digest_of, is_part=parts)
            complete.append(manifest.step)
        except (CheckpointError, OSError) as error:
            problems.append(str(error))
    problems += _links_in(directory)
    if not complete:
        problems.append(f"{directory.path}: no complete checkpoint")
    return LocalVerification(tuple(complete), tuple(problems), parts)


def _transient_objects(manifest: RunManifest, listed: dict[str, StoredObject]) -> dict[str, str]:
    """Return unlisted objects that may be there, because they are being uploaded or removed."""
    removals, found = removed_steps(manifest), {}
    for key in listed.keys() - manifest.by_key().keys():
        if checkpoint_step_of(key) in removals:
            found[key] = "of a checkpoint that retention removes; prune again to finish"
        elif manifest.may_be_uploading(key):
            found[key] = "was being sent when the run was last seen; not listed yet"
    return found


def _compare_names(manifest: RunManifest, listed: set[str]) -> list[str]:
    """Report objects that the manifest does not list, and a manifest without checkpoints.

    Missing objects are found one by one elsewhere.
    """
    known = manifest.by_key()
    leftovers = {key for key in manifest.unlisted_objects if manifest.may_be_left_over(key)}
    extra = sorted(key for key in listed - known.keys() - leftovers if not attempt_of(key))
    problems = [f"{key}: extra, the manifest does not list it" for key in extra]
    if not any(belongs_to_checkpoint(key) for key in known):
        problems.append(f"run-{manifest.run_number}: the manifest lists no checkpoint")
    return problems


def _compare_own_manifests(store: Store, manifest: RunManifest) -> dict[str, str]:
    """Compare each checkpoint's own manifest, which `restore` uses, with the run's manifest.

    Returns the problems by the key of the checkpoint's manifest.
    """
    checkpoints = [each for each in checkpoints_of(manifest) if each.marker]
    with ThreadPoolExecutor(_OBJECTS_AT_ONCE) as pool:
        problems = pool.map(lambda checkpoint: own_manifest_problem(store, checkpoint), checkpoints)
        found = zip(checkpoints, problems, strict=True)
        return {each.marker.key: problem for each, problem in found if each.marker and problem}


def _compare_provenance(store: Store, manifest: RunManifest) -> list[str]:
    """Check that the manifest's provenance equals the stored run.json, which it lists by digest."""
    key = f"{manifest.records_prefix}run.json"
    content = store.read_object(key)
    if content is None:
        return []  # missing, which is reported elsewhere
    try:
        run = parse_json_object(content, key)
    except DamagedFileError as error:
        return [f"{error}; the manifest's provenance could not be compared"]
    outcome = run.pop("outcome", {})
    if same_json(run, manifest.provenance) and same_json(outcome, manifest.outcome):
        return []
    return [f"run-{manifest.run_number}: the manifest's provenance differs from the stored run.json"]


def _links_in(directory: RunDirectory) -> list[str]:
    """Return a problem for each symbolic link of the run: it would be verified here, but not stored."""
    folders = (directory.checkpoints, *map(directory.checkpoint, directory.checkpoint_steps()))
    return [
        f"{path}: a symbolic link; put the file itself there"
        for path in (*(directory.path / name for name in RECORDS), *folders)
        if path.is_symlink()
    ]
