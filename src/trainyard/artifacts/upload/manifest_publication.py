"""Build a run's manifest from the stored objects, and put it where no other manifest is.

This is the last step of a sync. The objects were stored before; nothing else is sent here.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.record.chain import listed_objects
from trainyard.artifacts.record.checkpoints import removed_steps
from trainyard.artifacts.record.contents import Contents
from trainyard.artifacts.record.manifest import (
    ManifestObject,
    RunManifest,
    StoredManifest,
    manifest_bytes,
    read_chain,
)
from trainyard.artifacts.record.signature import put_signature
from trainyard.artifacts.record.statement import resolved_config, statement_of
from trainyard.artifacts.store.layout import (
    belongs_to_checkpoint,
    checkpoint_step_of,
    is_open_manifest,
    manifest_key,
    open_manifest_key,
    records_prefix,
    records_version_of,
)
from trainyard.artifacts.store.object_store import Store, StoredObject, put_and_confirm, sha256_of_chunks
from trainyard.errors import RunConflictError

if TYPE_CHECKING:
    from trainyard.gateways.model_signing import ModelSigner

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredState:
    """The state of the run in the store when the sync started."""

    chain: list[StoredManifest]
    known: dict[str, ManifestObject]
    """Entries of the newest manifest, by key."""
    there: dict[str, StoredObject]
    """Objects that the store lists, by key."""

    @property
    def newest(self) -> RunManifest | None:
        return self.chain[-1].manifest if self.chain else None

    @property
    def version(self) -> int:
        """Version of the next manifest."""
        return len(self.chain) + 1


def read_store(store: Store, number: int, known_chain: tuple[StoredManifest, ...] = ()) -> StoredState:
    """Read the state of the run; `known_chain` are manifests read before, which never change."""
    chain = read_chain(store, number, known_chain)
    return StoredState(chain, chain[-1].manifest.by_key() if chain else {}, listed_objects(store, number))


def build_manifest(
    contents: Contents,
    number: int,
    entries: Mapping[str, ManifestObject],
    *,
    before: StoredState,
    sent: frozenset[str],
) -> RunManifest:
    """Return the manifest of `entries`; other keys that were sent or in the store become leftovers."""
    pruned = before.newest.pruned if before.newest else ()
    removals = removed_steps(before.newest) if before.newest else frozenset()
    unlisted = {key for key in (*before.there, *sent) if key not in entries}
    known = {key for key in unlisted if checkpoint_step_of(key) not in removals}
    leftovers = sorted(key for key in known if _may_be_left_over(key, before.version))
    for key in leftovers if contents.version is None else ():  # while it trains, the rest comes later
        _logger.warning("%s: an interrupted sync sent it, and it is no longer on this machine", key)
    newest = before.chain[-1] if before.chain else None
    objects = tuple(entries[key] for key in sorted(entries))
    supersedes = {"key": newest.key, "sha256": newest.sha256} if newest else {}
    run, is_open = contents.run, contents.version is not None
    config = resolved_config(contents.config, run)
    return RunManifest(
        run_id=str(run["run_id"]),
        run_key=str(run.get("key") or ""),
        run_number=number,
        created=time.time(),
        objects=objects,
        provenance={key: value for key, value in run.items() if key != "outcome"},
        outcome=run.get("outcome", {}),
        version=before.version,
        supersedes=supersedes,
        unlisted_objects=tuple(leftovers),
        records=records_prefix(number, before.version) if is_open else "",
        pruned=pruned,
        statement=statement_of(run, number, objects, config=config, supersedes=supersedes),
    )


def _may_be_left_over(key: str, version: int) -> bool:
    """Return whether a sync can have sent the object; any other object is reported as extra."""
    return belongs_to_checkpoint(key) or (records_version_of(key) or version + 1) <= version


def put_manifest(
    store: Store, manifest: RunManifest, before: StoredState, *, signer: "ModelSigner | None" = None
) -> tuple[StoredManifest, str]:
    """Put the manifest unless the newest one has the same content; return the newest one.

    Also return the key of its signature, which is stored first; empty without a signer.
    Raises RunConflictError when another sync put one at the same time.
    """
    newest = before.chain[-1] if before.chain else None
    if newest and _statement(newest.manifest) == _statement(manifest):
        same = newest.manifest.provenance == manifest.provenance
        signature = _sign(store, newest.manifest, signer if same else None, key=newest.key)
        return newest, signature
    if manifest.is_open:
        key = open_manifest_key(manifest.run_number, before.version)
    else:
        ends = sum(not is_open_manifest(each.key) for each in before.chain)
        key = manifest_key(manifest.run_number, ends + 1)
    content = manifest_bytes(manifest, store.prefix)
    metadata = {"run-id": manifest.run_id, "run-number": str(manifest.run_number)}
    signature = _sign(store, manifest, signer, key=key, content=content)
    if not put_and_confirm(store, key, content, metadata=metadata):
        raise RunConflictError(
            f"{key}: another sync of run {manifest.run_id} stored it meanwhile. Run this one again."
        )
    return StoredManifest(key, sha256_of_chunks([content])[0], manifest), signature


def _statement(manifest: RunManifest) -> tuple[Any, ...]:
    return manifest.objects, manifest.unlisted_objects, manifest.is_open


def _sign(
    store: Store,
    manifest: RunManifest,
    signer: "ModelSigner | None",
    *,
    key: str,
    content: bytes | None = None,
) -> str:
    """Sign the bytes of a manifest; without `content`, sign the equivalent ones that the store has."""
    if signer is None:
        # A run without a key is the usual one, so it is logged once, for the manifest that ends the run.
        if not manifest.is_open:
            _logger.info("%s is not signed: there is no signing key", key)
        return ""
    if content is None and (content := store.read_object(key)) is None:
        return ""
    return put_signature(store, signer, manifest, key=key, content=content)
