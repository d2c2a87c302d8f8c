"""The last step of a sync: the manifest is built from what is stored, and put where no other is.

What is stored, and under which names, was decided and done before; nothing else is sent here.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.artifacts.checkpoints import doomed_steps
from trainyard.artifacts.layout import (
    belongs_to_checkpoint,
    checkpoint_step_of,
    manifest_key,
    metrics_key,
    records_prefix,
    records_version_of,
    run_prefix,
)
from trainyard.artifacts.manifest import (
    ManifestObject,
    RunManifest,
    StoredManifest,
    manifest_bytes,
    read_chain,
)
from trainyard.artifacts.store import Store, StoredObject, read_object
from trainyard.errors import RunConflictError

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Before:
    """What the store had of the run when the sync began."""

    chain: list[StoredManifest]
    known: dict[str, ManifestObject]
    """What the newest manifest says."""
    there: dict[str, StoredObject]
    """What is listed."""

    @property
    def newest(self) -> RunManifest | None:
        return self.chain[-1].manifest if self.chain else None

    @property
    def version(self) -> int:
        """Of the manifest that comes next."""
        return len(self.chain) + 1


def read_store(store: Store, number: int, known_chain: tuple[StoredManifest, ...] = ()) -> Before:
    """Look at what there is; `known_chain` is what was read before, which no longer changes."""
    chain = read_chain(store, number, known_chain)
    there = {found.key: found for found in store.list_objects(run_prefix(number))}
    if (metrics := store.describe(metrics_key(number))) is not None:
        there[metrics.key] = metrics
    return Before(chain, chain[-1].manifest.by_key() if chain else {}, there)


def build_manifest(
    run: Mapping[str, Any],
    number: int,
    entries: Mapping[str, ManifestObject],
    *,
    before: Before,
    sent: frozenset[str],
    is_open: bool,
) -> RunManifest:
    """The manifest of `entries`; what was `sent` or there and is not among them is a leftover."""
    pruned = before.newest.pruned if before.newest else ()
    doomed = doomed_steps(before.newest) if before.newest else frozenset()
    unlisted = {key for key in (*before.there, *sent) if key not in entries}
    known = {key for key in unlisted if checkpoint_step_of(key) not in doomed}
    leftovers = sorted(key for key in known if belongs_to_checkpoint(key) or records_version_of(key))
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
        leftovers=tuple(leftovers),
        records=records_prefix(number, before.version) if is_open else "",
        pruned=pruned,
    )


def put_manifest(store: Store, manifest: RunManifest, before: Before) -> str:
    """Put the manifest unless the newest one says the same already; the key of the one that holds."""
    newest = before.newest
    if newest and _says(newest) == _says(manifest):
        return before.chain[-1].key
    key, content = manifest_key(manifest.run_number, before.version), manifest_bytes(manifest, store.prefix)
    metadata = {"run-id": manifest.run_id, "run-number": str(manifest.run_number)}
    store.put_new(key, content, metadata=metadata)
    # What counts is what is there: our own put whose answer was lost, or that of another sync.
    if read_object(store, key) != content:
        raise RunConflictError(
            f"{key}: another sync of run {manifest.run_id} stored it meanwhile. Run this one again."
        )
    return key


def _says(manifest: RunManifest) -> tuple[Any, ...]:
    return manifest.objects, manifest.leftovers, manifest.is_open
