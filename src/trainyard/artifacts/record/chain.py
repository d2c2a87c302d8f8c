"""Check the chain of a run's manifests: complete, each naming its predecessor by digest, all of one run.

`manifest` reads a single manifest; `verify` checks the objects.
"""

from trainyard.artifacts.record.manifest import (
    RunManifest,
    StoredManifest,
    manifest_keys,
    read_chain,
    read_manifests,
)
from trainyard.artifacts.record.run_numbers import missing_run, stored_claim_of_number, used_numbers
from trainyard.artifacts.store.layout import is_open_manifest, manifest_key, metrics_key, run_prefix
from trainyard.artifacts.store.object_store import Store, StoredObject
from trainyard.errors import VerificationError


def newest_manifest(store: Store, run_number: int) -> tuple[str, RunManifest | None, list[str]]:
    """Return the key of the newest manifest, the manifest (None if none), and the chain's problems."""
    first = manifest_key(run_number)
    try:
        chain = read_chain(store, run_number)
    except VerificationError as error:
        return first, None, [str(error)]
    problems = _gaps(store, run_number, chain)
    if not chain:
        if not problems:
            used = used_numbers(store)
            known = f"{first}: missing, so run {run_number} cannot be verified"
            problems = [known if run_number in used else missing_run(store, run_number, used)]
        return first, None, problems
    for number, link in enumerate(chain):
        problems += _judge(link, chain[number - 1] if number else None, run_number)
    try:
        owner, newest = stored_claim_of_number(store, run_number), chain[-1].manifest
    except VerificationError as error:
        return chain[-1].key, chain[-1].manifest, [*problems, str(error)]
    if owner is None or not owner.is_of(newest.run_id, newest.run_key):
        whose = f"{owner.run_id} with another key" if owner and owner.run_id == newest.run_id else None
        problems.append(
            f"{chain[-1].key}: belongs to run {newest.run_id}, "
            f"but the run number belongs to {whose or (owner.run_id if owner else 'no run')}"
        )
    return chain[-1].key, chain[-1].manifest, problems


def listed_objects(store: Store, run_number: int) -> dict[str, StoredObject]:
    """Return what the store lists of the run, by key: its objects and its metrics document. None is read."""
    prefix, document = run_prefix(run_number), metrics_key(run_number)
    documents = (found for found in store.list_objects(document) if found.key == document)
    return {found.key: found for found in (*store.list_objects(prefix), *documents)}


def _gaps(store: Store, run_number: int, chain: list[StoredManifest]) -> list[str]:
    """Report manifests that the chain does not reach: one before them was removed, or they were added.

    An open one may have lost against another sync, unless there is nothing that it can have lost against.
    """
    reached = {each.key for each in chain}
    beyond = [key for key in manifest_keys(store, run_number) if key not in reached]
    if chain:
        beyond = [key for key in beyond if not is_open_manifest(key)]
    before = {each.key: each.manifest.supersedes.get("key") for each in read_manifests(store, beyond)}
    return [f"{key}: {earlier}, which comes before it, is missing" for key, earlier in before.items()]


def _judge(link: StoredManifest, before: StoredManifest | None, run_number: int) -> list[str]:
    manifest, problems = link.manifest, []
    if manifest.run_number != run_number:
        problems.append(f"{link.key}: is the manifest of run number {manifest.run_number}")
    expected = {"key": before.key, "sha256": before.sha256} if before else {}
    if dict(manifest.supersedes) != expected:
        problems.append(f"{link.key}: does not name {before.key if before else 'nothing'} as its predecessor")
    if before and before.manifest.run_id != manifest.run_id:
        problems.append(
            f"{link.key}: belongs to run {manifest.run_id}, "
            f"the manifest before it to run {before.manifest.run_id}"
        )
    if len(manifest.by_key()) != len(manifest.objects):
        problems.append(f"{link.key}: lists an object twice")
    return problems
