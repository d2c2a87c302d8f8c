"""Compare objects in the store with a manifest, to a depth that limits what the comparison proves.

Checksums that the store computed itself are trusted, and so are bytes that are read back; metadata that we
wrote is never trusted. The caller chooses the objects and acts on the result.
"""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from enum import StrEnum
from random import SystemRandom

from trainyard.artifacts.record.manifest import ManifestObject
from trainyard.artifacts.store.object_store import (
    SHA256,
    Store,
    StoredObject,
    checksum_agrees,
    sha256_of_chunks,
)
from trainyard.errors import ObjectChangedError
from trainyard.run.progress import UNSEEN, Progress

_OBJECTS_AT_ONCE = 8
_logger = logging.getLogger(__name__)
_SAMPLE_SHARE = 0.1
_SAMPLE_LEAST = 8


class Depth(StrEnum):
    """The share of the store that is read back."""

    LISTING = "listing"
    """Names, sizes and the checksums that the store computed when it received the bytes; bytes are read only
    where it computes none. Later corruption is not noticed.
    """
    SAMPLE = "sample"
    """A listing, and the bytes of a tenth of the objects, at least 8, drawn anew each time. Complete objects
    are read because a SHA-256 cannot confirm a part. The other objects are compared as in a listing.
    """
    FULL = "full"
    """A listing, and the bytes of every object: what a restore would read now."""


def compare_objects(
    store: Store,
    entries: Sequence[ManifestObject],
    listed: Mapping[str, StoredObject],
    *,
    depth: Depth,
    progress: Progress = UNSEEN,
) -> dict[str, str]:
    """Return each wrong object's key and problem; `listed` are the objects that the store lists, by key."""
    keys = [entry.key for entry in entries]
    sample = min(len(keys), max(_SAMPLE_LEAST, round(_SAMPLE_SHARE * len(keys))))
    count = {Depth.LISTING: 0, Depth.SAMPLE: sample, Depth.FULL: len(keys)}[depth]
    read_back = set(SystemRandom().sample(keys, count))
    progress.begin("reading back the store", sum(entry.size for entry in entries if entry.key in read_back))

    def compare(entry: ManifestObject) -> str | None:
        is_read = entry.key in read_back
        return _compare(store, entry, listed.get(entry.key), read_back=is_read, progress=progress)

    with ThreadPoolExecutor(_OBJECTS_AT_ONCE) as pool:
        answers = zip(entries, pool.map(compare, entries), strict=True)
        return {entry.key: f"{entry.key}: {wrong}" for entry, wrong in answers if wrong is not None}


def listing_problem(entry: ManifestObject, found: StoredObject | None) -> str | None:
    """Return what the listing of the store shows to be wrong about an object; None if nothing."""
    if found is None:
        return "missing in the store"
    if found.size != entry.size:
        return f"{found.size:,} bytes in the store, the manifest says {entry.size:,}"
    return None


def _compare(
    store: Store,
    entry: ManifestObject,
    found: StoredObject | None,
    *,
    read_back: bool,
    progress: Progress,
) -> str | None:
    """Return the problem of one object, None if there is none."""
    if found is None or found.size != entry.size:
        return listing_problem(entry, found)
    if read_back and not found.etag:
        # A store without ETags is a folder: its checksum is computed from the bytes, which are read now.
        return _compare_bytes(store, entry, found.identity, progress)
    described = found if found.checksum else store.describe(entry.key)
    if described is None:
        return "missing in the store"
    if described.archived:
        return (
            f"is in the archive {described.archived}, so nothing can be restored from it now. Bring it back "
            "(aws s3api restore-object), and exempt the store from the lifecycle rule that archives it"
        )
    agrees = checksum_agrees(described.checksum, entry.sha256, entry.checksum)
    if agrees is False:
        return f"the store computed {described.checksum['value']}, which the manifest does not have"
    # A CRC can be forged, but the ETag changes with the bytes.
    replaced = described.checksum.get("algorithm") != SHA256 and described.etag != entry.etag
    if read_back or agrees is None or replaced:
        return _compare_bytes(store, entry, described.identity, progress)
    return None


def _compare_bytes(store: Store, entry: ManifestObject, identity: str, progress: Progress) -> str | None:
    """Read the object, and again if it is wrong: corruption during the transfer is not the store's fault."""
    wrong = _compare_once(store, entry, identity, progress)
    if wrong is not None and (again := _compare_once(store, entry, identity, UNSEEN)) is None:
        _logger.warning("%s: %s; correct when read again: it was damaged in transit", entry.key, wrong)
        return again
    return wrong


def _compare_once(store: Store, entry: ManifestObject, identity: str, progress: Progress) -> str | None:
    """Read the object whose checksum was compared, and return the problem of its bytes."""
    try:
        with closing(store.stream(entry.key, 0, entry.size, identity=identity)) as chunks:
            sha256, size = sha256_of_chunks(chunks, progress)
    except FileNotFoundError:
        return "removed while it was verified"
    except ObjectChangedError:
        return "replaced while it was verified: somebody else writes to the store"
    if size != entry.size:
        return f"{size:,} bytes read from the store, the manifest says {entry.size:,}"
    if sha256 != entry.sha256:
        return f"SHA-256 {sha256[:12]}… read from the store, the manifest says {entry.sha256[:12]}…"
    return None
