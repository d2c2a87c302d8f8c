"""Store the checkpoints of a run that is still going, one at a time, each listed by a further manifest.

A checkpoint is identified by its own manifest: if the store's newest manifest lists the same digests, it is
not read again. Each checkpoint is stored with the records, under keys that no later sync replaces, so that
the store can be verified and restored at any moment. `run_following` decides when to check.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.artifacts.record.checkpoints import is_pruned
from trainyard.artifacts.record.contents import RECORDS, Contents, Group, contents_of
from trainyard.artifacts.record.manifest import StoredManifest
from trainyard.artifacts.record.sync_report import SyncReport
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.manifest_publication import StoredState, read_store
from trainyard.artifacts.upload.other_machines import OtherMachines
from trainyard.artifacts.upload.sync import store_contents
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.directory import RunDirectory

if TYPE_CHECKING:
    from trainyard.gateways.model_signing import ModelSigner

_FILES_AT_ONCE = 2
"""Files sent at once: fewer than after the run, because the trainer needs the processors."""


class RunningRun:
    """A run that is being trained, and its run number in a store."""

    def __init__(
        self, store: Store, directory: RunDirectory, number: int, *, signer: "ModelSigner | None" = None
    ) -> None:
        self._store, self._directory, self._number, self._signer = store, directory, number, signer
        self._others = OtherMachines(store)
        self.waits = False
        """Whether a checkpoint is omitted because another machine has not stored its part yet."""
        self._chain: tuple[StoredManifest, ...] = ()
        """The manifests read so far; they never change, so each is read once."""

    def store_newest(self, passed_over: frozenset[str]) -> SyncReport | None:
        """Store the newest complete checkpoint that is not stored yet; return None if there is none.

        Checkpoints named in `passed_over` (`checkpoint-500`) are ignored.
        """
        with tempfile.TemporaryDirectory(prefix="trainyard-") as scratch:
            before, contents = self._read_state(Path(scratch))
            new = [
                group
                for group in contents.checkpoints
                if group.name not in passed_over and not _is_stored(group, before)
            ]
            complete = [group for group in new if self._others.missing(group, before.known) is None]
            self.waits, new = len(complete) < len(new), complete
            if not new:
                return None
            records = [group for group in contents.groups if group.name == RECORDS]
            if before.chain and not before.chain[-1].manifest.is_open:
                # First put a manifest of a run that is still going: without it, verify would report the new
                # objects as extra.
                self._store_groups(replace(contents, groups=tuple(records)), before)
                return self.store_newest(passed_over)
            return self._store_groups(replace(contents, groups=(new[0], *records)), before)

    def _read_state(self, scratch: Path) -> tuple[StoredState, Contents]:
        before = read_store(self._store, self._number, self._chain)
        self._chain = tuple(before.chain)
        contents = contents_of(self._directory, self._number, scratch, version=before.version)
        return before, replace(contents, problems=(), notes=())  # the last pass reports them, once

    def _store_groups(self, contents: Contents, before: StoredState) -> SyncReport:
        return store_contents(
            self._store,
            contents,
            self._number,
            before=before,
            signer=self._signer,
            files_at_once=_FILES_AT_ONCE,
            others=self._others,
            others_seconds=0.0,
        )


def _is_stored(group: Group, before: StoredState) -> bool:
    """Return whether every file of the checkpoint is listed with its digest and stored, by size and ETag."""
    if is_pruned(group, before.newest):
        return True  # retention removed it, and it must not be stored again
    for item in group.all_items:
        known, there = before.known.get(item.key), before.there.get(item.key)
        if known is None or there is None or there.size != known.size:
            return False
        if known.etag and known.etag != there.etag:
            return False
        if item.claimed is not None and known.sha256 != item.claimed.sha256:
            return False
    try:
        return group.marker is None or before.known[group.marker.key].sha256 == sha256_of_file(
            group.marker.path
        )
    except OSError:
        return True  # the run removed it meanwhile, but it is stored
