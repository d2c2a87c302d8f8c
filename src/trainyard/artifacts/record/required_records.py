"""List the records that a run must have in its store beside its checkpoints, so that it can be verified.

The list is computed from the run (its directory, or its provenance in the manifest), never from the stored
objects: a shortened manifest must not require less. Pure: names in, names out.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from trainyard.artifacts.record.checkpoints import checkpoints_of
from trainyard.artifacts.record.manifest import RunManifest
from trainyard.artifacts.store.layout import belongs_to_checkpoint, identity_key, metrics_key
from trainyard.run.checkpoint_manifest import MANIFEST_NAME
from trainyard.run.judged_records import RECORDS


def is_loose(manifest: RunManifest) -> bool:
    """Return whether the manifest lists only a checkpoint and its metrics, stored without a run directory."""
    number = manifest.run_number
    known = (identity_key(number), metrics_key(number))
    return not manifest.is_open and all(
        entry.key in known or belongs_to_checkpoint(entry.key) for entry in manifest.objects
    )


def required_records(manifest: RunManifest, on_disk: Iterable[str] = ()) -> list[str]:
    """Return the keys that the run must have; `on_disk` are the judged records in its directory."""
    number, here = manifest.run_number, tuple(on_disk)
    if is_loose(manifest) and not here:
        return [identity_key(number)]
    names = [name for name in RECORDS if name in here or _is_required(name, manifest)]
    documents = [] if manifest.is_open else [metrics_key(number)]
    return [identity_key(number), *(manifest.records_prefix + name for name in names), *documents]


def missing_records(manifest: RunManifest, on_disk: Iterable[str] = ()) -> list[str]:
    """Return a problem for each required key that the manifest does not list."""
    known, required = manifest.by_key(), required_records(manifest, on_disk)
    if not is_loose(manifest):
        required += [each.prefix + MANIFEST_NAME for each in checkpoints_of(manifest)]
    return [
        f"{key}: the run must have it, and the manifest does not list it"
        for key in required
        if key not in known
    ]


def _is_required(name: str, manifest: RunManifest) -> bool:
    run: Mapping[str, Any] = manifest.provenance
    if name == "run.json":
        return True
    if name == "evaluations.jsonl":
        return False
    if name == "config.yaml":
        return bool(run.get("config_sha256"))
    return bool(manifest.outcome) and not manifest.is_open  # a run that ended has these records
