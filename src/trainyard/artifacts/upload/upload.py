"""Send groups of files to a store. A group is read, hashed and compared before any of it becomes visible.

Objects that the store already holds with the same bytes are skipped; files that the run's newest manifest
lists are not even read. What that manifest lists of a step never changes. Anything else under the run's keys
may be replaced, because the number belongs to the run: interrupted uploads, and records, which grow. The
caller chooses the files and their keys.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Self

from trainyard.artifacts.record.contents import Group, Item, hash_item, require_claimed
from trainyard.artifacts.record.manifest import ManifestObject
from trainyard.artifacts.store.layout import checkpoint_step_of
from trainyard.artifacts.store.object_store import (
    Store,
    StoredObject,
    Upload,
    checksum_agrees,
    sha256_of_chunks,
)
from trainyard.artifacts.store.worker_threads import Workers
from trainyard.artifacts.upload.other_machines import OtherMachines
from trainyard.errors import CheckpointError, ObjectChangedError, VerificationError
from trainyard.run.progress import UNSEEN, Progress

FILES_AT_ONCE = 32
"""Small files mostly wait for responses. The store itself limits how many large ones are sent at once."""


class GroupUploader:
    """Sends groups to one store; a context manager, because it owns threads."""

    def __init__(
        self,
        store: Store,
        *,
        known: Mapping[str, ManifestObject],
        there: Mapping[str, StoredObject],
        metadata: Mapping[str, str],
        files_at_once: int = FILES_AT_ONCE,
        progress: Progress = UNSEEN,
        others: OtherMachines | None = None,
        others_seconds: float = 0.0,
    ) -> None:
        """`known` are the entries of the run's newest manifest, `there` the objects that the store lists.

        `others_seconds` is how long to wait for the files of other machines.
        """
        self.sent: set[str] = set()
        """Keys of the objects made visible so far, even if the rest of their group failed."""
        self._store, self._known, self._there, self._metadata = store, known, there, metadata
        self._progress = progress
        self._others, self._others_seconds = others or OtherMachines(store), others_seconds
        self._files = Workers(files_at_once)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def send(self, group: Group) -> dict[str, ManifestObject]:
        """Store the group, its marker last; return the manifest entries by key.

        Raises CheckpointError, with nothing of the group made visible, when a file that is read does not
        match its checkpoint's manifest, or another machine has not stored its part of the group.
        """
        entries = self._other_entries(group)
        entries |= self._upload_items([item for item in group.items if not item.is_elsewhere])
        if group.marker is not None:
            entries |= self._upload_items([group.marker])
        return entries

    def _other_entries(self, group: Group) -> dict[str, ManifestObject]:
        """Return the entries of the files that other machines store. Raises CheckpointError without them."""
        if not group.elsewhere:
            return {}
        self._others.wait_for(group, self._known, seconds=self._others_seconds)
        found = [self._others.entry(item, self._known) for item in group.elsewhere]
        entries = [entry for entry in found if entry is not None]
        if len(entries) < len(found):
            raise CheckpointError(f"{group.name}: another machine replaced its part meanwhile; sync again")
        self._progress.advance(sum(entry.size for entry in entries))
        return {entry.key: entry for entry in entries}

    def _upload_items(self, items: Sequence[Item]) -> dict[str, ManifestObject]:
        with contextlib.ExitStack() as undo:
            prepared = self._files.each(lambda item: self._prepare(item, undo), items)
            entries = [entry for entry in prepared if isinstance(entry, ManifestObject)]
            uploads = [upload for upload in prepared if not isinstance(upload, ManifestObject)]
            stored = self._files.each(self._commit, uploads)
            undo.pop_all()
        return {entry.key: entry for entry in (*entries, *stored)}

    def _prepare(self, item: Item, undo: contextlib.ExitStack) -> ManifestObject | Upload:
        there, known = self._there.get(item.key), self._known.get(item.key)
        if there is not None and (entry := self._stored_entry(item, there)) is not None:
            self._progress.advance(entry.size)
            return entry
        replaces = there.identity if there is not None else ""
        upload = self._store.stage(item.path, item.key, metadata=self._metadata, replaces=replaces)
        undo.callback(upload.abort)
        require_claimed(item, upload.sha256)
        if known is not None and known.sha256 != upload.sha256 and _is_final(item.key):
            raise VerificationError(
                f"{item.key}: the run's manifest lists other bytes under this name, and what is listed never "
                "changes. Training again below a stored step is a new run: start it with --resume and the "
                "address of the checkpoint"
            )
        return upload

    def _stored_entry(self, item: Item, there: StoredObject) -> ManifestObject | None:
        if item.path.stat().st_size != there.size:
            return None
        known = self._known.get(item.key)
        if known is not None and not (known.etag and known.etag == there.etag):
            known = None
        if known is not None and item.claimed is not None and item.claimed.sha256 == known.sha256:
            return known  # stored from bytes with this digest, so the local bytes are not read
        sha256 = hash_item(item)
        if known is not None and known.sha256 == sha256:
            return known
        described = self._store.describe(item.key)
        if described is None:
            return None
        agrees = checksum_agrees(described.checksum, sha256)
        # This object is in no earlier manifest, and a CRC can be forged, so its bytes are read.
        same = self._has_content(described, sha256) if agrees is None else agrees
        return ManifestObject.of(described, sha256) if same else None

    def _has_content(self, there: StoredObject, sha256: str) -> bool:
        try:
            chunks = self._store.read_chunks(there.key, identity=there.identity)
            return sha256_of_chunks(chunks)[0] == sha256
        except (FileNotFoundError, ObjectChangedError):
            return False

    def _commit(self, upload: Upload) -> ManifestObject:
        stored = upload.commit()
        self.sent.add(stored.key)
        if not stored.checksum:
            sha256, _ = sha256_of_chunks(self._store.read_chunks(stored.key))
            if sha256 != upload.sha256:
                raise VerificationError(
                    f"{stored.key}: read back with SHA-256 {sha256}, sent {upload.sha256}"
                )
        return ManifestObject.of(stored, upload.sha256)


def _is_final(key: str) -> bool:
    """Return whether the object never changes once listed; records, and files of no known step, may."""
    return checkpoint_step_of(key) is not None
