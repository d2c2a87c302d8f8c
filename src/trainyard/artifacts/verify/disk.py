"""Compare the run's directory with the manifest: which files are equal, which differ, which are not stored.

Only a file that was read counts as compared. Links are never followed, because a sync does not follow them.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from trainyard.artifacts.record.checkpoints import checkpoints_of, is_pruned, missing_records
from trainyard.artifacts.record.contents import checkpoint_group, link_within, metrics_chunks
from trainyard.artifacts.record.local_paths import places_of, records_of
from trainyard.artifacts.record.manifest import ManifestObject, RunManifest
from trainyard.artifacts.store.layout import (
    belongs_to_checkpoint,
    checkpoint_step_of,
    metrics_key,
    records_version_of,
    run_prefix,
)
from trainyard.artifacts.store.object_store import checksum_agrees, sha256_of_chunks
from trainyard.errors import CheckpointError, DamagedFileError, TrainyardError
from trainyard.run.checkpoint_manifest import MANIFEST_NAME, is_complete, is_shard
from trainyard.run.directory import RunDirectory, step_of
from trainyard.run.identity import read_run
from trainyard.run.judged_records import RECORDS
from trainyard.run.node_folder import keeps_parts
from trainyard.run.progress import UNSEEN, Progress
from trainyard.run.records import iterate_rows
from trainyard.run.untrusted_files import open_regular

_FILES_AT_ONCE = 8
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class DiskComparison:
    """The result of comparing the directory with the manifest."""

    wrong: Mapping[str, str] = field(default_factory=dict)
    """How a file differs, by the key of its object."""
    gone: frozenset[str] = frozenset()
    """Keys of the objects that have a path in the directory, but no longer a file there."""
    problems: tuple[str, ...] = ()
    """Files of the directory that the store does not have."""
    elsewhere: frozenset[str] = frozenset()
    """Keys of the objects whose file another machine wrote and keeps (`checkpointing.shared: false`)."""

    def text(self, manifest: RunManifest) -> str:
        """Return the parts that were not compared with the disk, for people; empty if none."""
        steps = {checkpoint_step_of(key) for key in self.gone if belongs_to_checkpoint(key)}
        others = sum(not belongs_to_checkpoint(key) for key in self.gone)
        earlier = sum(records_version_of(entry.key) is not None for entry in manifest.objects)
        notes = (
            f"{len(steps)} of the checkpoints are no longer on disk" if steps else "",
            f"{others} of the logs are no longer on disk" if others else "",
            f"{len(self.elsewhere)} files of checkpoints are on other machines" if self.elsewhere else "",
            f"{earlier} records stored during training are only in the store" if earlier else "",
        )
        return "; ".join(note for note in notes if note)


def compare_disk(
    directory: RunDirectory, manifest: RunManifest, *, store: str, progress: Progress = UNSEEN
) -> DiskComparison:
    """Compare the files that still exist.

    Raises TrainyardError when the directory is not a run directory, or holds another run.
    """
    run = read_run(directory.run_file)
    if run["run_id"] != manifest.run_id:
        raise TrainyardError(
            f"{directory.path} is run {run['run_id']}; "
            f"run-{manifest.run_number} in {store} is run {manifest.run_id}"
        )
    problems = _unstored_records(directory, manifest, run.get("outcome"))
    problems += _unstored_checkpoints(directory, manifest)
    places = _places(manifest)
    here = (entry.size for place, entry in places.items() if (directory.path / place).exists())
    progress.begin("hashing the files on disk", sum(here))
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        answers = pool.map(lambda each: _compare(directory, each[0], each[1], progress), places.items())
        found = dict(zip((entry.key for entry in places.values()), answers, strict=True))
    found |= _compare_metrics(directory, manifest, str(run["run_id"]))
    markers = [each.marker for each in checkpoints_of(manifest) if each.marker]
    found |= _unknown_manifests(directory, [marker for marker in markers if found.get(marker.key) == _GONE])
    return DiskComparison(
        wrong={key: answer for key, answer in found.items() if answer not in (_EQUAL, _GONE, _ELSEWHERE)},
        elsewhere=frozenset(key for key, answer in found.items() if answer == _ELSEWHERE),
        gone=frozenset(key for key, answer in found.items() if answer == _GONE),
        problems=tuple(problems),
    )


_EQUAL, _GONE, _ELSEWHERE = "equal", "gone", "elsewhere"


def _places(manifest: RunManifest) -> dict[PurePosixPath, ManifestObject]:
    """Return the paths of the listed objects, without records of an open run, which have grown since."""
    checkpoints = [entry for each in checkpoints_of(manifest) for entry in each.objects]
    records = [] if manifest.is_open else records_of(manifest)
    document = metrics_key(manifest.run_number)
    listed = [entry for entry in (*records, *checkpoints) if entry.key != document]
    return places_of(listed, manifest.run_number)


def _unstored_records(directory: RunDirectory, manifest: RunManifest, outcome: object) -> list[str]:
    if not manifest.is_open:
        return missing_records(manifest, [name for name in RECORDS if (directory.path / name).exists()])
    ended = (
        f"run-{manifest.run_number}: was stored last while the run was still going, and the run has "
        "ended since: its last records are not stored; sync again"
    )
    return [ended] if outcome else []


def _unstored_checkpoints(directory: RunDirectory, manifest: RunManifest) -> Iterator[str]:
    """Report local checkpoints that the manifest does not list; listed ones are compared elsewhere."""
    known, prefix = manifest.by_key(), run_prefix(manifest.run_number)
    for step in directory.checkpoint_steps():
        name, path = f"checkpoint-{step}", directory.checkpoint(step)
        if f"{prefix}{name}/{MANIFEST_NAME}" in known or not is_complete(path):
            continue
        try:
            group = checkpoint_group(path, manifest.run_number, step, is_part=keeps_parts(directory))
        except CheckpointError as error:
            yield f"{name} is not complete on disk: {error}"
            continue
        if not is_pruned(group, manifest):
            yield f"{name}: on disk, but not in the store; sync again"


def _compare(directory: RunDirectory, place: PurePosixPath, entry: ManifestObject, progress: Progress) -> str:
    """Return the result for a file: equal, gone, or its problem."""
    path = directory.path / place
    if (link := link_within(directory.path, path)) is not None:
        return f"{link} is a symbolic link, and links in a run are neither stored nor compared"
    try:
        sha256, size = _digest(path, entry.size, progress)
    except FileNotFoundError:
        if _may_be_gone(directory, place):
            return _GONE
        return _ELSEWHERE if _is_part(directory, place) else f"{path} is missing"
    except DamagedFileError as error:
        return str(error)
    if size != entry.size:
        return f"{size:,} bytes on disk, the manifest says {entry.size:,}"
    if sha256 != entry.sha256:
        return f"SHA-256 {sha256[:12]}… on disk, the manifest says {entry.sha256[:12]}…"
    if checksum_agrees(entry.checksum, sha256) is False:
        return "the manifest's store checksum is not that of the file on disk"
    return _EQUAL


def _may_be_gone(directory: RunDirectory, place: PurePosixPath) -> bool:
    """Return whether the file may be missing: it is a log, or all of its checkpoint was removed."""
    folder = place.parts[1] if place.parts[0] == directory.checkpoints.name else ""
    if step_of(folder) is not None:
        return not (directory.checkpoints / folder).exists()
    return str(place) not in RECORDS


def _unknown_manifests(directory: RunDirectory, gone: list[ManifestObject]) -> dict[str, str]:
    """Report each manifest of a removed checkpoint whose digest the run's events do not name."""
    saved: dict[str, set[str]] = {}
    with contextlib.suppress(OSError, DamagedFileError):  # reported where the events are compared
        for row in iterate_rows(directory.events_file) if gone else ():
            if "manifest_sha256" in row:
                saved.setdefault(str(row.get("step")), set()).add(str(row["manifest_sha256"]))
    return {
        entry.key: "is not the checkpoint that the run saved: events.jsonl names another SHA-256"
        for entry in gone
        if entry.sha256 not in saved.get(str(checkpoint_step_of(entry.key)), {entry.sha256})
    }


def _is_part(directory: RunDirectory, place: PurePosixPath) -> bool:
    """Return whether another machine wrote the file.

    Only shards can be: the main one writes all other files.
    """
    return place.parts[0] == directory.checkpoints.name and is_shard(place.name) and keeps_parts(directory)


def _compare_metrics(directory: RunDirectory, manifest: RunManifest, run_id: str) -> dict[str, str]:
    """Compare the metrics document, which a sync makes from `metrics.jsonl`."""
    entry = manifest.by_key().get(metrics_key(manifest.run_number))
    if entry is None or manifest.is_open:
        return {}
    try:
        chunks = metrics_chunks(directory.metrics_file, run_id=run_id, run_number=manifest.run_number)
        sha256, _ = sha256_of_chunks(chunks)
    except DamagedFileError as error:
        return {entry.key: str(error)}
    return {entry.key: _EQUAL if sha256 == entry.sha256 else "differs from metrics.jsonl on disk"}


def _digest(path: Path, expected: int, progress: Progress) -> tuple[str, int]:
    """Return the file's SHA-256 and size; it is not read when it has another size than expected."""
    digest, size = hashlib.sha256(), 0
    with open_regular(path, links=False) as file:
        if (now := os.fstat(file.fileno()).st_size) != expected:
            return "", now
        try:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                progress.advance(len(chunk))
        except OSError as error:
            raise DamagedFileError(f"{path}: cannot be read ({error.strerror})") from None
    return digest.hexdigest(), size
