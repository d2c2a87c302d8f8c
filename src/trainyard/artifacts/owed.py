"""What a run owes to its store beside its checkpoints: the records without which nobody can judge it.

Computed from the run (its directory, or what its manifest says of it), never from the list of what is stored:
a list that somebody shortened would owe less. Pure: names in, names out.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from trainyard.artifacts.checkpoints import checkpoints_of
from trainyard.artifacts.layout import belongs_to_checkpoint, identity_key, metrics_key
from trainyard.artifacts.manifest import RunManifest
from trainyard.run.checkpoints import MANIFEST_NAME
from trainyard.run.judged import RECORDS


def is_loose(manifest: RunManifest) -> bool:
    """Whether it lists a checkpoint and its metrics alone, stored without the directory of a run."""
    number = manifest.run_number
    known = (identity_key(number), metrics_key(number))
    return not manifest.is_open and all(
        entry.key in known or belongs_to_checkpoint(entry.key) for entry in manifest.objects
    )


def owed_records(manifest: RunManifest, on_disk: Iterable[str] = ()) -> list[str]:
    """The keys that the run owes; `on_disk` are the judged records that its directory has."""
    number, here = manifest.run_number, tuple(on_disk)
    if is_loose(manifest) and not here:
        return [identity_key(number)]
    names = [name for name in RECORDS if name in here or _is_owed(name, manifest)]
    documents = [] if manifest.is_open else [metrics_key(number)]
    return [identity_key(number), *(manifest.records_prefix + name for name in names), *documents]


def missing_records(manifest: RunManifest, on_disk: Iterable[str] = ()) -> list[str]:
    """What is owed and not listed, each in words."""
    known, owed = manifest.by_key(), owed_records(manifest, on_disk)
    if not is_loose(manifest):
        owed += [each.prefix + MANIFEST_NAME for each in checkpoints_of(manifest)]
    return [f"{key}: the run owes it, and the manifest does not list it" for key in owed if key not in known]


def _is_owed(name: str, manifest: RunManifest) -> bool:
    run: Mapping[str, Any] = manifest.provenance
    if name == "run.json":
        return True
    if name == "config.yaml":
        return bool(run.get("config_sha256"))
    return bool(manifest.outcome) and not manifest.is_open  # a run that ended has told how it went
