"""Find the parts of a checkpoint that other machines have stored, and wait for them.

With `checkpointing.shared: false` each machine sends its own files; the main machine alone lists them, after
it has checked that the store holds exactly what the checkpoint's manifest says. Where the store computed no
SHA-256 of an object, its bytes are read back, once.
"""

import time
from collections.abc import Mapping

from trainyard.artifacts.record.contents import Group, Item
from trainyard.artifacts.record.manifest import ManifestObject
from trainyard.artifacts.store.object_store import Store, StoredObject, checksum_agrees, sha256_of_chunks
from trainyard.errors import CheckpointError, ObjectChangedError

_POLL_SECONDS = 2.0


class OtherMachines:
    """Parts that other machines have stored of a run so far."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read_back: dict[tuple[str, str, str], str] = {}
        """The SHA-256 of objects that were read back, by key, ETag and identity."""

    def entry(self, item: Item, known: Mapping[str, ManifestObject]) -> ManifestObject | None:
        """Return the manifest entry of a file of another machine; None until the store holds its bytes.

        `known` are the entries of the run's newest manifest.
        """
        assert item.claimed is not None
        there = self._store.describe(item.key)
        if there is None or there.size != item.claimed.size:
            return None
        before = known.get(item.key)
        if before and before.etag and before.etag == there.etag and before.sha256 == item.claimed.sha256:
            return before
        agrees = checksum_agrees(there.checksum, item.claimed.sha256)
        if agrees is None:
            agrees = self._sha256_of(there) == item.claimed.sha256
        return ManifestObject.of(there, item.claimed.sha256) if agrees else None

    def missing(self, group: Group, known: Mapping[str, ManifestObject]) -> str | None:
        """Return the key of the first file of `group` that no other machine has stored yet."""
        return next((item.key for item in group.elsewhere if self.entry(item, known) is None), None)

    def wait_for(self, group: Group, known: Mapping[str, ManifestObject], *, seconds: float) -> None:
        """Wait until the store has all files of other machines. Raises CheckpointError when it has not."""
        deadline = time.monotonic() + seconds
        while (key := self.missing(group, known)) is not None:
            if time.monotonic() >= deadline:
                raise CheckpointError(
                    f"{key} is on another machine, which has not stored it (checkpointing.shared is false). "
                    "Run trainyard store sync there too, then again here"
                )
            time.sleep(_POLL_SECONDS)

    def _sha256_of(self, there: StoredObject) -> str | None:
        which = (there.key, there.etag, there.identity)
        if which not in self._read_back:
            try:
                chunks = self._store.read_chunks(there.key, identity=there.identity)
                self._read_back[which] = sha256_of_chunks(chunks)[0]
            except (FileNotFoundError, ObjectChangedError):
                return None
        return self._read_back[which]
