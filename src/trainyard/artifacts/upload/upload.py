"""Send groups of files to a store. A group is read, hashed and compared before any of it becomes visible.

Objects that the store already holds with the same bytes are skipped; files that the run's newest manifest
lists are not even read. What that manifest lists of a step never changes. Anything else under the run's keys
may be replaced, because the number belongs to the run: interrupted uploads, and records, which grow. The
caller chooses the files and their keys.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from trainyard.artifacts.record.contents import Group, Item, hash_item, require_claimed
from trainyard.artifacts.record.manifest import ManifestObject
from trainyard.artifacts.store.layout import checkpoint_step_of
from trainyard.artifacts.store.object_store import Store, StoredObject, Upload, has_content
from trainyard.artifacts.store.worker_threads import map_items
from trainyard.errors import CheckpointError, VerificationError
from trainyard.run.progress import UNSEEN, Progress

FILES_AT_ONCE = 32
"""Small files mostly wait for responses. The store itself limits how many large ones are sent at once."""
_POLL_SECONDS = 2.0


class OtherMachines:
    """The parts of checkpoints that other machines store, with `checkpointing.shared: false`.

    The main machine alone lists them, after it has checked that the store holds exactly what the checkpoint's
    manifest says. Where the store computed no SHA-256 of an object, its bytes are read back, once.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: set[tuple[str, str, str]] = set()
        """Key, ETag and identity of objects whose bytes were compared."""

    def entry(self, item: Item, known: Mapping[str, ManifestObject]) -> ManifestObject | None:
        """Return the manifest entry of a file of another machine; None until the store holds its bytes.

        `known` are the entries of the run's newest manifest.
        """
        assert item.claimed is not None
        there, sha256 = self._store.describe(item.key), item.claimed.sha256
        if there is None or there.size != item.claimed.size:
            return None
        before = known.get(item.key)
        if before and before.etag and before.etag == there.etag and before.sha256 == sha256:
            return before
        which = (there.key, there.etag, there.identity)
        if which not in self._held and not has_content(self._store, there, sha256):
            return None
        self._held.add(which)
        return ManifestObject.of(there, sha256)

    def missing(self, group: Group, known: Mapping[str, ManifestObject]) -> str | None:
        """Return the key of the first file of `group` that no other machine has stored yet."""
        return next((item.key for item in group.elsewhere if self.entry(item, known) is None), None)

    def wait_for(
        self, group: Group, known: Mapping[str, ManifestObject], *, seconds: float
    ) -> dict[str, ManifestObject]:
        """Return the entries of all files of other machines. Raises CheckpointError if one is missing."""
        deadline = time.monotonic() + seconds
        while True:
            found = {item.key: self.entry(item, known) for item in group.elsewhere}
            entries = {key: entry for key, entry in found.items() if entry is not None}
            if len(entries) == len(found):
                return entries
            if time.monotonic() >= deadline:
                key = next(key for key in found if key not in entries)
                raise CheckpointError(
                    f"{key} is on another machine, which has not stored it (checkpointing.shared is false). "
                    "Run trainyard store sync there too, then again here"
                )
            time.sleep(_POLL_SECONDS)


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
        self._pool = ThreadPoolExecutor(files_at_once)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def send(self, group: Group) -> dict[str, ManifestObject]:
        """Store the group, its marker last; return the manifest entries by key.

        Raises CheckpointError, with nothing of the group made visible, when a file that is read does not
        match its checkpoint's manifest, or another machine has not stored its part of the group.
        """
        entries = self._others.wait_for(group, self._known, seconds=self._others_seconds)
        self._progress.advance(sum(entry.size for entry in entries.values()))
        entries |= self._upload_items([item for item in group.items if not item.is_elsewhere])
        if group.marker is not None:
            entries |= self._upload_items([group.marker])
        return entries

    def _upload_items(self, items: Sequence[Item]) -> dict[str, ManifestObject]:
        with contextlib.ExitStack() as undo:
            prepared = map_items(self._pool, lambda item: self._prepare(item, undo), items)
            entries = [entry for entry in prepared if isinstance(entry, ManifestObject)]
            uploads = [upload for upload in prepared if not isinstance(upload, ManifestObject)]
            stored = map_items(self._pool, self._commit, uploads)
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
        is_final = checkpoint_step_of(item.key) is not None  # records, and files of no known step, may change
        if known is not None and known.sha256 != upload.sha256 and is_final:
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
        # This object is in no earlier manifest, and a CRC can be forged, so its bytes are read.
        described = self._store.describe(item.key)
        same = described is not None and has_content(self._store, described, sha256)
        return ManifestObject.of(described, sha256) if described and same else None

    def _commit(self, upload: Upload) -> ManifestObject:
        stored = upload.commit()
        self.sent.add(stored.key)
        if not stored.checksum and not has_content(self._store, stored, upload.sha256):
            raise VerificationError(f"{stored.key}: was read back with other bytes than were sent")
        return ManifestObject.of(stored, upload.sha256)


class RateLimit:
    """Limits what all threads read together, so that a sync does not slow the trainer beside it.

    It allows `bytes_per_second` on average, and catches up on at most a tenth of a second.
    """

    def __init__(
        self,
        bytes_per_second: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = bytes_per_second, clock, sleep
        self._lock = threading.Lock()
        self._free_at = clock()

    def __call__(self, count: int) -> None:
        """Wait until `count` more bytes may be read."""
        with self._lock:
            now = self._clock()
            start = max(self._free_at, now - 0.1)
            self._free_at = start + count / self._rate
            wait = start - now
        if wait > 0:
            self._sleep(wait)
