"""A checkpoint and metrics that lie in no run directory: the functions of source document 004, on any store.

They go the way of a run: the number is claimed, the bytes are confirmed by the store, a manifest goes last.
"""

import hashlib
import json
import logging
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.artifacts.contents import RECORDS, Contents, Group, Item, checkpoint_group, digest_of
from trainyard.artifacts.hashing import calculate_file_hash, checksum_agrees, sha256_of_chunks
from trainyard.artifacts.layout import checkpoint_prefix, manifest_key, metrics_key
from trainyard.artifacts.manifest import ManifestObject, RunManifest
from trainyard.artifacts.numbers import claim_number
from trainyard.artifacts.sending import Sending
from trainyard.artifacts.store import Store, read_object
from trainyard.artifacts.sync import SyncReport, store_contents, way_on
from trainyard.errors import ConfigError, TrainyardError
from trainyard.run.checkpoints import MANIFEST_NAME, read_manifest
from trainyard.run.commands import script_command
from trainyard.run.files import sha256_of_file
from trainyard.run.identity import read_run
from trainyard.run.records import iterate_rows

__all__ = [
    "calculate_file_hash",
    "describe_files",
    "object_has_hash",
    "store_file",
    "store_manifest",
    "sync_files",
]
_logger = logging.getLogger(__name__)


def sync_files(
    store: Store, checkpoint: Path, metrics: Path, wanted: int | None, *, provenance: Mapping[str, Any]
) -> SyncReport:
    """Store a checkpoint (a file or a directory) and a metrics file as one run.

    The run is the one whose directory the checkpoint lies in, else the workflow run in `provenance["ci"]`,
    else a run of its own, known by the checkpoint's digest.
    """
    run = _run_of(checkpoint, provenance)
    parts = {"--checkpoint": checkpoint, "--metrics": metrics, "--store": store.url}
    flags = " ".join(f"{option} {shlex.quote(str(value))}" for option, value in parts.items())
    command = f"{script_command('training_artifact_sync.py')} {flags} --run-number {wanted or 'auto'}"
    with (
        tempfile.TemporaryDirectory(prefix="trainyard-") as scratch,
        way_on(f"{checkpoint} and {metrics}", command),
    ):
        number = claim_number(store, str(run["run_id"]), wanted)
        return store_contents(
            store, _contents(run, checkpoint, metrics, number, scratch=Path(scratch)), number
        )


def describe_files(
    checkpoint: Path, metrics: Path, run_number: int, *, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """The manifest of the two, hashed on disk, without what a store says of them."""
    run = _run_of(checkpoint, provenance)
    with tempfile.TemporaryDirectory(prefix="trainyard-") as scratch:
        contents = _contents(run, checkpoint, metrics, run_number, scratch=Path(scratch))
        items = [item for group in contents.groups for item in group.all_items]
        objects = [ManifestObject(i.key, i.path.stat().st_size, digest_of(i)) for i in items]
        created = max(item.path.stat().st_mtime for item in items)
    known = {key: value for key, value in run.items() if key != "outcome"}
    manifest = RunManifest(str(run["run_id"]), run_number, created, tuple(objects), known)
    return manifest.to_json("")


def store_file(store: Store, path: Path, key: str, metadata: Mapping[str, str]) -> bool:
    """Store one file under any key, confirmed by the store's checksum or by reading it back.

    False, with the reason logged, when that failed: the caller's training goes on.
    """
    try:
        _require(path)
        with Sending(store, {}, {}, metadata) as sending:
            sending.send(Group(key, (Item(key, path),)))
    except (TrainyardError, OSError) as error:
        _logger.error("%s was not stored as %s: %s", path, key, error)
        return False
    return True


def store_manifest(store: Store, manifest: Mapping[str, Any], run_number: int) -> bool:
    """Put a manifest unless the run has another one already, which is never overwritten: False then."""
    content = (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode()
    key = manifest_key(run_number)
    store.put_new(key, content, metadata={"run-number": str(run_number)})
    return read_object(store, key) == content


def object_has_hash(store: Store, key: str, sha256: str) -> bool:
    """Whether the object's bytes have this SHA-256, by the store's own checksum or else by reading them."""
    found = store.describe(key)
    if found is None:
        return False
    agrees = checksum_agrees(found.checksum, sha256)
    return agrees if agrees is not None else sha256_of_chunks(store.read_chunks(key))[0] == sha256


def _run_of(checkpoint: Path, provenance: Mapping[str, Any]) -> dict[str, Any]:
    _require(checkpoint)
    run_file = checkpoint.resolve().parent.parent / "run.json"
    if run_file.is_file():
        return read_run(run_file)
    known = {key: value for key, value in provenance.items() if value}
    if workflow_run := known.get("ci", {}).get("run_id"):
        return {"run_id": f"github-{workflow_run}", **known}
    return {"run_id": f"sha256-{_tree_digest(checkpoint)[:16]}", **known}


def _tree_digest(path: Path) -> str:
    if path.is_file():
        return sha256_of_file(path)
    names = [f"{p.relative_to(path).as_posix()} {sha256_of_file(p)}\n" for p in _files_below(path)]
    return hashlib.sha256("".join(names).encode()).hexdigest()


def _contents(
    run: dict[str, Any], checkpoint: Path, metrics: Path, number: int, *, scratch: Path
) -> Contents:
    target = scratch / "metrics.json"
    target.write_text(json.dumps(_metrics(metrics, str(run["run_id"]), number)) + "\n", encoding="utf-8")
    records = Group(RECORDS, (Item(metrics_key(number), target),))
    return Contents(run, (_checkpoint(checkpoint, number), records))


def _checkpoint(path: Path, number: int) -> Group:
    if (path / MANIFEST_NAME).is_file():
        manifest = read_manifest(path)
        keys = checkpoint_prefix(number, manifest.step)
        return checkpoint_group(path, f"checkpoint-{manifest.step}", keys, manifest)
    keys = checkpoint_prefix(number, None)
    if path.is_file():
        return Group("checkpoint", (Item(keys + path.name, path),))
    return Group(
        "checkpoint", tuple(Item(keys + p.relative_to(path).as_posix(), p) for p in _files_below(path))
    )


def _files_below(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file())


def _metrics(path: Path, run_id: str, number: int) -> dict[str, Any]:
    """Rows of a JSON-lines file, or what a JSON document holds."""
    _require(path)
    try:
        value = json.loads(path.read_bytes())
    except ValueError:
        value = list(iterate_rows(path))
    rows = value.get("rows", [value]) if isinstance(value, dict) else value
    return {"run_id": run_id, "run_number": number, "rows": rows}


def _require(path: Path) -> None:
    if not path.exists():
        raise ConfigError(f"{path}: there is no such file or directory")
