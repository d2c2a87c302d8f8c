"""Remove checkpoints and older records from a store.

    plan → a manifest that records them as removed and no longer lists them → delete, each one's marker first

If pruning is killed in between, the store still verifies: the rest of a removed checkpoint is reported only
as a note, and the next pruning removes it. `pruning_plan` decides what is removed, and why.
"""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from trainyard.artifacts.record.checkpoints import Checkpoint
from trainyard.artifacts.record.manifest import PrunedCheckpoint, RunManifest, StoredManifest, read_chain
from trainyard.artifacts.record.statement import restate
from trainyard.artifacts.retention.pruning_plan import RunPruning, names_by_digest
from trainyard.artifacts.store.layout import signature_prefix
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.manifest_publication import StoredState, put_manifest
from trainyard.errors import RunConflictError, ServiceError
from trainyard.run.sizes import format_size

if TYPE_CHECKING:
    from trainyard.gateways.model_signing import ModelSigner

_AT_ONCE = 8
_logger = logging.getLogger(__name__)


def prune(store: Store, plan: RunPruning, *, by: str, signer: "ModelSigner | None" = None) -> list[str]:
    """Carry out the plan of one run; return what was kept, because it was promoted or stored again.

    Raises RunConflictError, with nothing removed, when the run was stored again since it was planned;
    ServiceError when the store gives up, after which another call finishes.
    """
    removals, kept = plan.removals, list[str]()
    if removals or plan.superseded:
        _put_remaining_manifest(store, plan, by=by, signer=signer)
    try:
        for each in removals:
            # Check right before deleting the marker: a later promotion or sync reads the marker.
            if _is_listed(store, plan, each.checkpoint):
                kept.append(f"{each.checkpoint.prefix} was stored again meanwhile, so it was kept")
            elif each.checkpoint.digest in names_by_digest(store):
                _list_again(store, plan.run_number, each.checkpoint, signer=signer)
                kept.append(f"{each.checkpoint.prefix} was promoted meanwhile, so it was kept")
            else:
                _delete(store, each.checkpoint)
        _delete_keys(store, [*plan.superseded, *plan.unfinished])
    except ServiceError as error:
        raise ServiceError(
            f"{error}\nThe manifest is already correct; run the same command again to finish."
        ) from error
    return kept


def _is_listed(store: Store, plan: RunPruning, checkpoint: Checkpoint) -> bool:
    """Return whether a newer manifest lists objects of the checkpoint, because its step was trained again."""
    newest = read_chain(store, plan.run_number, plan.chain)[-1].manifest
    return any(entry.key.startswith(checkpoint.prefix) for entry in newest.objects)


def _put_remaining_manifest(store: Store, plan: RunPruning, *, by: str, signer: "ModelSigner | None") -> None:
    """Put a manifest without the removed objects; superseded records are leftovers until they are deleted."""
    newest, removals = plan.chain[-1].manifest, plan.removals
    gone = {entry.key for each in removals for entry in each.checkpoint.objects} | plan.superseded.keys()
    leftovers = tuple(sorted({*newest.unlisted_objects, *plan.superseded}))
    now = time.time()
    records = [
        PrunedCheckpoint(
            step=int(each.checkpoint.step or 0),
            digest=each.checkpoint.digest,
            size=each.checkpoint.size,
            time=now,
            by=by,
            reason=each.reason,
        )
        for each in removals
    ]
    objects = tuple(entry for entry in newest.objects if entry.key not in gone)
    pruned = tuple(sorted((*newest.pruned, *records), key=lambda each: (each.step, each.time)))
    try:
        rest = replace(newest, objects=objects, pruned=pruned, unlisted_objects=leftovers)
        _put(store, plan.chain, rest, signer=signer)
    except RunConflictError:
        raise RunConflictError(
            f"run {newest.run_number} was stored again since this was planned. Nothing of it was removed; "
            "run it again."
        ) from None


def _list_again(
    store: Store, run_number: int, checkpoint: Checkpoint, *, signer: "ModelSigner | None"
) -> None:
    """List a checkpoint that still exists, in the newest manifest."""
    chain = read_chain(store, run_number)
    newest = chain[-1].manifest
    listed = {entry.key: entry for entry in checkpoint.objects} | newest.by_key()
    objects = tuple(listed[key] for key in sorted(listed))
    pruned = tuple(each for each in newest.pruned if each.digest != checkpoint.digest)
    try:
        _put(store, chain, replace(newest, objects=objects, pruned=pruned), signer=signer)
    except RunConflictError:
        raise RunConflictError(
            f"{checkpoint.prefix} was promoted meanwhile and is complete, but its run was stored again at "
            "the same time, so no manifest lists it. Run the same command again to finish."
        ) from None


def _put(
    store: Store, chain: Sequence[StoredManifest], manifest: RunManifest, *, signer: "ModelSigner | None"
) -> None:
    """Put the manifest. Raises RunConflictError when somebody else put one meanwhile."""
    newest = chain[-1]
    if signer is None and next(iter(store.list_objects(signature_prefix(manifest.run_number))), None):
        _logger.warning(
            "run %d was signed, but its new manifest is not, because no key is set", manifest.run_number
        )
    following = replace(
        manifest,
        created=time.time(),
        version=newest.manifest.version + 1,
        supersedes={"key": newest.key, "sha256": newest.sha256},
    )
    put_manifest(store, restate(following), StoredState(list(chain), {}, {}), signer=signer)


def _delete(store: Store, checkpoint: Checkpoint) -> None:
    if checkpoint.marker is not None:
        store.delete(checkpoint.marker.key)
    _delete_keys(store, [entry.key for entry in checkpoint.objects if entry != checkpoint.marker])
    _logger.info(
        "run %d: %s removed, %s", checkpoint.run_number, checkpoint.name, format_size(checkpoint.size)
    )


def _delete_keys(store: Store, keys: Sequence[str]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(store.delete, keys))
