"""Upload a run's checkpoints and records to a store, and put its manifest last.

    claim the number → list the store → per checkpoint: read, compare, send, commit → records → manifest

An object that the store holds already with the same bytes is not sent again. A checkpoint that the store
still holds as the newest manifest lists it is not even read; `verify` checks the local files. A new
checkpoint whose files do not match its own manifest is reported and not stored; the others are stored. This
module neither parses the command line nor chooses the store.
"""

import contextlib
import errno
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.record.checkpoints import is_pruned
from trainyard.artifacts.record.contents import Contents, Group, contents_of
from trainyard.artifacts.record.manifest import ManifestObject
from trainyard.artifacts.record.run_numbers import claim_in, claim_of_run, require_newest
from trainyard.artifacts.record.sync_report import SyncReport
from trainyard.artifacts.store.layout import identity_key
from trainyard.artifacts.store.object_store import Store, sha256_of_chunks
from trainyard.artifacts.upload.manifest_publication import (
    StoredState,
    build_manifest,
    put_manifest,
    read_store,
)
from trainyard.artifacts.upload.upload import FILES_AT_ONCE, GroupUploader, OtherMachines
from trainyard.errors import CheckpointError, RecordError, ServiceError, VerificationError
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.progress import UNSEEN, Progress
from trainyard.run.sizes import format_size
from trainyard.run.suggested_commands import sync_command

if TYPE_CHECKING:
    from trainyard.gateways.model_signing import ModelSigner

OTHERS_SECONDS = 600.0
"""Seconds that the last pass over a run waits for the parts that other machines store."""
_ABANDONED_SECONDS = 24 * 3600.0
_logger = logging.getLogger(__name__)


def sync_run(
    store: Store,
    directory: RunDirectory,
    wanted: int | None,
    *,
    signer: "ModelSigner | None" = None,
    progress: Progress = UNSEEN,
    others_seconds: float | None = None,
) -> SyncReport:
    """Store the run as number `wanted` (None: the number it has, else the next free one).

    `progress` receives the bytes that need not be sent; the store's `pace` receives those that it sends.
    `others_seconds` is that of `store_contents`.

    Raises RunConflictError when the number belongs to another run, and ServiceError when the store gives up.
    The ServiceError names the files that are still local and gives the command that finishes the upload.
    """
    run = read_run(directory.run_file)
    with sync_suggested(store, directory, wanted):
        number = claim_of_run(store, run, wanted).number
    with (
        tempfile.TemporaryDirectory(prefix="trainyard-") as scratch,
        sync_suggested(store, directory, number),
    ):
        contents = contents_of(directory, number, Path(scratch))
        return store_contents(
            store, contents, number, signer=signer, progress=progress, others_seconds=others_seconds
        )


def store_contents(
    store: Store,
    contents: Contents,
    number: int,
    *,
    before: StoredState | None = None,
    signer: "ModelSigner | None" = None,
    files_at_once: int = FILES_AT_ONCE,
    progress: Progress = UNSEEN,
    others: OtherMachines | None = None,
    others_seconds: float | None = None,
) -> SyncReport:
    """Store everything in `contents` under a number that was claimed, and put the manifest last.

    Where each machine stores its own part of a checkpoint, wait `others_seconds` for the other machines; None
    means `OTHERS_SECONDS`.
    """
    started, metadata = time.monotonic(), _metadata(contents.run, number)
    before = before or read_store(store, number)
    problems, notes = list(contents.problems), list(contents.notes)
    for line in contents.notes:
        _logger.warning("%s", line)
    wanted = [group for group in contents.groups if not is_pruned(group, before.newest)]
    progress.begin("sending to the store", sum(group.size for group in wanted))
    with GroupUploader(
        store,
        known=before.known,
        there=before.there,
        metadata=metadata,
        files_at_once=files_at_once,
        progress=progress,
        others=others,
        others_seconds=OTHERS_SECONDS if others_seconds is None else others_seconds,
    ) as sending:
        entries = send_groups(sending, wanted, problems=problems, notes=notes)
    if sending.sent and (swept := store.sweep(_ABANDONED_SECONDS)):
        _logger.info("aborted %d uploads that were started more than a day ago and never completed", swept)
    entries |= _identity_entry(store, number, before.known)
    skipped = len(entries) - len(sending.sent) - 1  # the claim record counts as neither
    problems += _carry_over(entries, before)
    for line in (*notes[len(contents.notes) :], *problems):
        _logger.warning("%s", line)
    manifest = build_manifest(contents, number, entries, before=before, sent=frozenset(sending.sent))
    require_newest(store, claim_in(contents.run, number))
    published, signature = put_manifest(store, manifest, before, signer=signer)
    return SyncReport(
        store=store.url,
        run_id=manifest.run_id,
        run_number=number,
        manifest_key=published.key,
        manifest_sha256=published.sha256,
        signature_key=signature,
        objects=len(entries),
        bytes=_total(entries),
        seconds=round(time.monotonic() - started, 3),
        sent=len(sending.sent),
        sent_bytes=sum(entry.size for key, entry in entries.items() if key in sending.sent),
        skipped=skipped,
        problems=tuple(problems),
        notes=tuple(notes),
    )


def send_groups(
    sending: GroupUploader, groups: list[Group], *, problems: list[str], notes: list[str]
) -> dict[str, ManifestObject]:
    """Send the groups in order; report a damaged one in `problems` and continue with the others."""
    entries: dict[str, ManifestObject] = {}
    for group in groups:
        try:
            stored = sending.send(group)
        except (CheckpointError, VerificationError, OSError) as error:
            if group.is_gone:  # the run itself removed it, because it has newer checkpoints
                notes.append(f"{group.name}: removed by the run while it was read; passed over")
            else:
                problems.append(f"{group.name} was not uploaded: {error}")
            continue
        entries |= stored
        _logger.info("%s: %d files, %s", group.name, len(stored), format_size(_total(stored)))
    return entries


def _carry_over(entries: dict[str, ManifestObject], before: StoredState) -> list[str]:
    """Keep entries whose files are no longer on this machine; report those that the store lost too."""
    lost = []
    for key, entry in before.known.items():
        if key not in entries:
            entries[key] = entry
            if key not in before.there or before.there[key].size != entry.size:
                lost.append(f"{key}: stored before, but no longer complete here or in the store")
    return lost


def _identity_entry(store: Store, number: int, known: dict[str, ManifestObject]) -> dict[str, ManifestObject]:
    """Return the entry of the claim record, which never changes, so the last manifest's entry stays valid."""
    key = identity_key(number)
    if key in known:
        return {key: known[key]}
    found, content = store.describe(key), store.read_object(key)
    if found is None or content is None:
        raise VerificationError(f"{key}: was just stored, and is missing now; sync again")
    return {key: ManifestObject.of(found, sha256_of_chunks([content])[0])}


def _metadata(run: dict[str, Any], number: int) -> dict[str, str]:
    """Return the metadata of every object. It is for people who use a console; nothing here reads it back."""
    git = run.get("git", {})
    known = {
        "git-commit": git.get("commit"),
        "git-dirty": git.get("commit") and {False: None, True: "true"}.get(git.get("dirty"), "unknown"),
        "run-number": str(number),
        "run-id": run["run_id"],
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return {key: str(value) for key, value in known.items() if value}


def _total(entries: dict[str, ManifestObject]) -> int:
    return sum(entry.size for entry in entries.values())


def sync_suggested(
    store: Store, directory: RunDirectory, number: int | None
) -> contextlib.AbstractContextManager[None]:
    """Do as `retry_suggested`, with the command that stores the run as this number."""
    command = sync_command(directory.path, store=store.url, run_number=number)
    return retry_suggested(str(directory.path), command)


@contextlib.contextmanager
def retry_suggested(directory: str, command: str) -> Iterator[None]:
    """Add to an error of the store or the disk where the files are, and the command that finishes the job."""
    left = f"Nothing is lost: checkpoints and records are in {directory}.\nWhen this is fixed, run: {command}"
    try:
        yield
    except ServiceError as error:
        raise ServiceError(f"{error}\n{left}") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        scratch = tempfile.gettempdir()
        free = format_size(shutil.disk_usage(scratch).free)
        raise RecordError(
            f"{error.filename2 or error.filename or scratch}: {error.strerror} ({free} free in {scratch}, "
            f"where records are copied before they are sent). Make room, or set TMPDIR.\n{left}"
        ) from error
