"""Bring a run's checkpoints and records into a store, and say so in a manifest that goes last.

    claim the number → list what is there → each checkpoint: read and hash, compare, commit → records →
    manifest

What is there already with the same bytes is not sent again. A checkpoint whose files are not what its own
manifest says is named and not stored; the others are. The command line and the choice of the store are not
its affair.
"""

import contextlib
import logging
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainyard.artifacts.contents import Contents, contents_of
from trainyard.artifacts.hashing import sha256_of_chunks
from trainyard.artifacts.layout import (
    belongs_to_checkpoint,
    identity_key,
    manifest_key,
    metrics_key,
    run_prefix,
)
from trainyard.artifacts.manifest import (
    ManifestObject,
    RunManifest,
    StoredManifest,
    manifest_bytes,
    read_chain,
)
from trainyard.artifacts.numbers import claim_number
from trainyard.artifacts.sending import Sending
from trainyard.artifacts.store import Store, StoredObject, read_object
from trainyard.errors import CheckpointError, RunConflictError, ServiceError, VerificationError
from trainyard.run.commands import sync_command
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SyncReport:
    """What a sync did."""

    store: str
    run_id: str
    run_number: int
    manifest_key: str
    objects: int
    """In the manifest, whether sent now or before."""
    bytes: int
    """Of all of them."""
    seconds: float
    sent: int
    """Objects that went now; the manifest is not counted."""
    skipped: int
    """Objects that were there already."""
    problems: tuple[str, ...]
    """What was not stored, and why. Not empty means: the answer is no."""
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def summary(self) -> str:
        """One line for people."""
        where = f"{self.store}/run-{self.run_number}"
        if not self.sent and not self.problems:
            return f"{self.objects} files, {size_text(self.bytes)} in {where}: unchanged, nothing sent"
        sent = f"{self.sent} of {self.objects}" if self.skipped else f"{self.objects}"
        return f"{sent} files, {size_text(self.bytes)} → {where} in {self.seconds:.1f} s"


def size_text(size: int) -> str:
    """Bytes as people say them: `812 bytes`, `43 MB`, `8.8 GB`."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            value = size / factor
            return f"{value:.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}"
    return f"{size} bytes"


def sync_run(store: Store, directory: RunDirectory, wanted: int | None) -> SyncReport:
    """Store the run as number `wanted` (None: the number it has, else the next free one).

    Raises RunConflictError when the number belongs to another run, and ServiceError, with what is still local
    and the command that finishes the job, when the store gives up on us.
    """
    run_id = str(read_run(directory.run_file)["run_id"])
    with way_on(str(directory.path), sync_command(directory.path, store=store.url, run_number=wanted)):
        number = claim_number(store, run_id, wanted)
    with (
        tempfile.TemporaryDirectory(prefix="trainyard-") as scratch,
        way_on(str(directory.path), sync_command(directory.path, store=store.url, run_number=number)),
    ):
        return store_contents(store, contents_of(directory, number, Path(scratch)), number)


def store_contents(store: Store, contents: Contents, number: int) -> SyncReport:
    """Store everything in `contents` under a number that was claimed, and the manifest last."""
    started = time.monotonic()
    before = _read_store(store, number)
    entries, problems = _identity_entry(store, number, before.known), list(contents.problems)
    with Sending(store, before.known, before.there, _metadata(contents.run, number)) as sending:
        for group in contents.groups:
            try:
                stored = sending.send(group)
            except (CheckpointError, VerificationError, OSError) as error:
                problems.append(f"{group.name} was not uploaded: {error}")
                continue
            entries |= stored
            _logger.info("%s: %d files, %s", group.name, len(stored), size_text(_total(stored)))
    skipped = len(entries) - sending.sent - 1  # the claim is neither sent here nor there before the run
    problems += _carry_over(entries, before)
    for line in (*contents.notes, *problems):
        _logger.warning("%s", line)
    manifest = _manifest(contents.run, number, entries, before)
    return SyncReport(
        store=store.url,
        run_id=manifest.run_id,
        run_number=number,
        manifest_key=_put_manifest(store, manifest, before.chain),
        objects=len(entries),
        bytes=_total(entries),
        seconds=round(time.monotonic() - started, 3),
        sent=sending.sent,
        skipped=skipped,
        problems=tuple(problems),
        notes=contents.notes,
    )


@dataclass(frozen=True)
class _Before:
    """What the store had of the run when the sync began."""

    chain: list[StoredManifest]
    known: dict[str, ManifestObject]
    """What the newest manifest says."""
    there: dict[str, StoredObject]
    """What is listed."""


def _read_store(store: Store, number: int) -> _Before:
    chain = read_chain(store, number)
    there = {found.key: found for found in store.list_objects(run_prefix(number))}
    if (metrics := store.describe(metrics_key(number))) is not None:
        there[metrics.key] = metrics
    return _Before(chain, chain[-1].manifest.by_key() if chain else {}, there)


def _carry_over(entries: dict[str, ManifestObject], before: _Before) -> list[str]:
    """Keep in the manifest what is no longer on this machine; the names of those that the store lost too."""
    lost = []
    for key, entry in before.known.items():
        if key not in entries:
            entries[key] = entry
            if key not in before.there or before.there[key].size != entry.size:
                lost.append(f"{key}: stored before, and now neither on this machine nor whole in the store")
    return lost


def _identity_entry(store: Store, number: int, known: dict[str, ManifestObject]) -> dict[str, ManifestObject]:
    """The record of the claim: never written again, so what the last manifest says of it stays true."""
    key = identity_key(number)
    if key in known:
        return {key: known[key]}
    found = store.describe(key)
    if found is None:
        raise VerificationError(f"{key}: stored a moment ago, and gone")
    return {key: ManifestObject.of(found, sha256_of_chunks(store.read_chunks(key))[0])}


def _metadata(run: dict[str, Any], number: int) -> dict[str, str]:
    """What every object carries: for people who look at it in a console. Nothing here reads it back."""
    known = {
        "git-commit": run.get("git", {}).get("commit"),
        "run-number": str(number),
        "run-id": run["run_id"],
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return {key: str(value) for key, value in known.items() if value}


def _manifest(
    run: dict[str, Any], number: int, entries: dict[str, ManifestObject], before: _Before
) -> RunManifest:
    leftovers = [key for key in before.there if key not in entries and belongs_to_checkpoint(key)]
    for key in leftovers:
        _logger.warning("%s: sent by a sync that was cut short, and no longer on this machine", key)
    newest = before.chain[-1] if before.chain else None
    return RunManifest(
        run_id=str(run["run_id"]),
        run_number=number,
        created=time.time(),
        objects=tuple(entries[key] for key in sorted(entries)),
        provenance={key: value for key, value in run.items() if key != "outcome"},
        outcome=run.get("outcome", {}),
        supersedes={"key": newest.key, "sha256": newest.sha256} if newest else {},
        leftovers=tuple(sorted(leftovers)),
    )


def _put_manifest(store: Store, manifest: RunManifest, chain: list[StoredManifest]) -> str:
    """Put the manifest unless the newest one says the same already; the key of the one that holds."""
    newest = chain[-1].manifest if chain else None
    if newest and (newest.objects, newest.leftovers) == (manifest.objects, manifest.leftovers):
        return chain[-1].key
    key, content = manifest_key(manifest.run_number, len(chain) + 1), manifest_bytes(manifest, store.prefix)
    metadata = {"run-id": manifest.run_id, "run-number": str(manifest.run_number)}
    store.put_new(key, content, metadata=metadata)
    # What counts is what is there: our own put whose answer was lost, or that of another sync.
    if read_object(store, key) != content:
        raise RunConflictError(
            f"{key}: another sync of run {manifest.run_id} stored it meanwhile. Run this one again."
        )
    return key


def _total(entries: dict[str, ManifestObject]) -> int:
    return sum(entry.size for entry in entries.values())


@contextlib.contextmanager
def way_on(directory: str, command: str) -> Iterator[None]:
    """Add to the store's refusal where everything still is, and the one command that finishes the job."""
    try:
        yield
    except ServiceError as error:
        raise ServiceError(
            f"{error}\nNothing is lost: checkpoints and records are in {directory}.\n"
            f"When it is mended: {command}"
        ) from error
