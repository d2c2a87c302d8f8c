"""Compare objects in the store with a manifest, to a depth that limits what the comparison proves.

Checksums that the store computed itself are trusted, and so are bytes that are read back; metadata that we
wrote is never trusted. The caller chooses the objects and acts on the result.
"""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from enum import StrEnum
from random import Random, SystemRandom
from types import MappingProxyType

from trainyard.artifacts.record.manifest import ManifestObject
from trainyard.artifacts.store.hashing import checksum_agrees
from trainyard.artifacts.store.object_store import SHA256, Store, StoredObject, with_progress
from trainyard.errors import ObjectChangedError
from trainyard.run.digests import FileDigests, PartDigests
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
    """A listing, and the bytes of a tenth of the objects, at least 8, drawn by a seed. Complete objects are
    read because a SHA-256 cannot confirm a part. The other objects are compared as in a listing.
    """
    FULL = "full"
    """A listing, and the bytes of every object: what a restore would read now."""


def new_seed() -> int:
    """Return an unpredictable seed."""
    return SystemRandom().randrange(1 << 32)


def compare_objects(
    store: Store,
    entries: Sequence[ManifestObject],
    listed: Mapping[str, StoredObject],
    *,
    depth: Depth,
    seed: int,
    parts: Mapping[str, PartDigests] = MappingProxyType({}),
    progress: Progress = UNSEEN,
) -> dict[str, str]:
    """Return each wrong object's key and problem. The same seed draws the same sample of the same entries.

    `listed` are the objects that the store lists, by key; `parts` are the part digests that a restore would
    check, which must match wherever bytes are read.
    """
    read_back = _draw_sample(entries, depth, seed)
    progress.begin("reading back the store", sum(entry.size for entry in entries if entry.key in read_back))
    store = with_progress(store, progress)

    def compare(entry: ManifestObject) -> str | None:
        return _compare(
            store, entry, listed.get(entry.key), parts.get(entry.key), read_back=entry.key in read_back
        )

    with ThreadPoolExecutor(_OBJECTS_AT_ONCE) as pool:
        answers = zip(entries, pool.map(compare, entries), strict=True)
        return {entry.key: f"{entry.key}: {wrong}" for entry, wrong in answers if wrong is not None}


def _draw_sample(entries: Sequence[ManifestObject], depth: Depth, seed: int) -> set[str]:
    keys = sorted(entry.key for entry in entries)
    count = {Depth.LISTING: 0, Depth.FULL: len(keys)}.get(
        depth, max(_SAMPLE_LEAST, round(_SAMPLE_SHARE * len(keys)))
    )
    return set(Random(seed).sample(keys, min(count, len(keys))))  # noqa: S311 - repeatable on purpose


def _compare(
    store: Store,
    entry: ManifestObject,
    found: StoredObject | None,
    parts: PartDigests | None,
    *,
    read_back: bool,
) -> str | None:
    """Return the problem of one object, None if there is none."""
    if found is None:
        return "missing in the store"
    if found.size != entry.size:
        return f"{found.size:,} bytes in the store, the manifest says {entry.size:,}"
    described = found if found.checksum else store.describe(entry.key)
    if described is None:
        return "missing in the store"
    agrees = checksum_agrees(described.checksum, entry.sha256, entry.checksum)
    if agrees is False:
        return f"the store computed {described.checksum['value']}, which the manifest does not have"
    # A CRC can be forged, but the ETag changes with the bytes.
    replaced = described.checksum.get("algorithm") != SHA256 and described.etag != entry.etag
    if read_back or agrees is None or replaced:
        return _compare_bytes(store, entry, described.identity, parts)
    return None


def _compare_bytes(
    store: Store, entry: ManifestObject, identity: str, parts: PartDigests | None
) -> str | None:
    """Read the object, and again if it is wrong: corruption during the transfer is not the store's fault."""
    wrong = _compare_once(store, entry, identity, parts)
    if wrong is not None and (again := _compare_once(store, entry, identity, parts)) is None:
        _logger.warning("%s: %s; correct when read again: it was damaged in transit", entry.key, wrong)
        return again
    return wrong


def _compare_once(
    store: Store, entry: ManifestObject, identity: str, parts: PartDigests | None
) -> str | None:
    """Read the object whose checksum was compared, and return the problem of its bytes."""
    digests = FileDigests(parts.part_bytes) if parts else FileDigests()
    try:
        with closing(store.stream(entry.key, 0, entry.size, identity=identity)) as chunks:
            for chunk in chunks:
                digests.update(chunk)
    except FileNotFoundError:
        return "removed while it was verified"
    except ObjectChangedError:
        return "replaced while it was verified: somebody else writes to the store"
    if digests.size != entry.size:
        return f"{digests.size:,} bytes read from the store, the manifest says {entry.size:,}"
    if digests.sha256 != entry.sha256:
        return f"SHA-256 {digests.sha256[:12]}… read from the store, the manifest says {entry.sha256[:12]}…"
    if parts and digests.parts != parts:
        return "SHA-256 as the manifest says, but the BLAKE3 of a part is not"
    return None
