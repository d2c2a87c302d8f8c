"""Store a checkpoint and metrics that have no run directory: the functions of source document 004.

They are stored like a run: the number is claimed, the store confirms the bytes, and a manifest goes last.
"""

import hashlib
import json
import logging
import os
import re
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.record.contents import RECORDS, Contents, Group, Item, checkpoint_group, hash_item
from trainyard.artifacts.record.manifest import ManifestObject, RunManifest
from trainyard.artifacts.record.run_numbers import claim_of_run, key_of_digest
from trainyard.artifacts.record.sync_report import SyncReport
from trainyard.artifacts.store.layout import checkpoint_prefix, manifest_key, metrics_key
from trainyard.artifacts.store.object_store import Store, has_content, put_and_confirm
from trainyard.artifacts.upload.preview import Preview, number_for, preview_contents
from trainyard.artifacts.upload.sync import retry_suggested, store_contents
from trainyard.artifacts.upload.upload import GroupUploader
from trainyard.errors import CheckpointError, ConfigError, DamagedFileError, TrainyardError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import is_complete, read_manifest
from trainyard.run.identity import read_run
from trainyard.run.progress import UNSEEN, Progress
from trainyard.run.records import Row
from trainyard.run.suggested_commands import trainyard_command
from trainyard.run.untrusted_files import is_utf8, parse_json, parse_json_line, read_bytes

if TYPE_CHECKING:
    from trainyard.gateways.model_signing import ModelSigner

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_STEP = re.compile(r"(?:.*[-_.])?(?:step|checkpoint|ckpt)[-_=]?(\d+)(?:\D.*)?", re.ASCII | re.IGNORECASE)
_logger = logging.getLogger(__name__)


def sync_files(
    store: Store,
    checkpoint: Path,
    metrics: Path,
    wanted: int | None,
    *,
    provenance: Mapping[str, Any],
    signer: "ModelSigner | None" = None,
    progress: Progress = UNSEEN,
) -> SyncReport:
    """Store a checkpoint (a file or a directory) and a metrics file as one run.

    The run is the one whose directory contains the checkpoint, else the workflow run in `provenance["ci"]`,
    else a new run that is identified by the checkpoint's digest.
    """
    run, rows = _run_of(checkpoint, provenance), read_metrics(metrics)
    parts = {"--checkpoint": checkpoint, "--metrics": metrics, "--store": store.url}
    flags = " ".join(f"{option} {shlex.quote(str(value))}" for option, value in parts.items())
    command = trainyard_command(f"store sync {flags} --run-number {wanted or 'auto'}")
    with (
        tempfile.TemporaryDirectory(prefix="trainyard-") as scratch,
        retry_suggested(f"{checkpoint} and {metrics}", command),
    ):
        number = claim_of_run(store, run, wanted).number
        contents = _contents(run, checkpoint, rows, number, scratch=Path(scratch))
        return store_contents(store, contents, number, signer=signer, progress=progress)


def preview_files(
    store: Store, checkpoint: Path, metrics: Path, wanted: int | None, *, provenance: Mapping[str, Any]
) -> Preview:
    """Preview what `sync_files` would send; nothing is changed."""
    run, rows = _run_of(checkpoint, provenance), read_metrics(metrics)
    number = number_for(store, str(run["run_id"]), wanted)
    with tempfile.TemporaryDirectory(prefix="trainyard-") as scratch:
        contents = _contents(run, checkpoint, rows, number, scratch=Path(scratch))
        return preview_contents(store, contents, number)


def describe_standalone_files(
    checkpoint: Path, metrics: Path, run_number: int, *, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the manifest of both files, hashed on disk, without a store's checksums."""
    run, rows = _run_of(checkpoint, provenance), read_metrics(metrics)
    with tempfile.TemporaryDirectory(prefix="trainyard-") as scratch:
        contents = _contents(run, checkpoint, rows, run_number, scratch=Path(scratch))
        items = [item for group in contents.groups for item in group.all_items]
        objects = [ManifestObject(i.key, i.path.stat().st_size, hash_item(i)) for i in items]
        created = max(item.path.stat().st_mtime for item in items)
    known = {key: value for key, value in run.items() if key != "outcome"}
    manifest = RunManifest(
        str(run["run_id"]), run_number, created, tuple(objects), known, run_key=str(run.get("key") or "")
    )
    return manifest.to_json("")


def store_file(store: Store, path: Path, key: str, metadata: Mapping[str, Any]) -> bool:
    """Store one file under any key, confirmed by the store's checksum or by reading it back.

    Metadata values are converted to text, and None values are omitted. Returns False and logs the reason when
    storing failed, so that the caller's training continues.
    """
    try:
        _require(path)
        with GroupUploader(store, known={}, there={}, metadata=_texts(metadata)) as sending:
            sending.send(Group(key, (Item(key, path),)))
    except (TrainyardError, OSError) as error:
        _logger.error("%s was not stored as %s: %s", path, key, error)
        return False
    return True


def store_manifest(store: Store, manifest: Mapping[str, Any], run_number: int) -> bool:
    """Put a manifest, but never replace another one: return False if the run has one already."""
    content = (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode()
    return put_and_confirm(store, manifest_key(run_number), content, metadata={"run-number": str(run_number)})


def object_has_hash(store: Store, key: str, sha256: str | None) -> bool:
    """Return whether the object has this SHA-256, by the store's own checksum or else by reading it."""
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        _logger.error("%s was not compared: %r is not a SHA-256 of 64 hex digits", key, sha256)
        return False
    found, expected = store.describe(key), sha256.lower()
    if found is None:
        _logger.error("%s: there is no such object in %s", key, store.url)
        return False
    return has_content(store, found, expected)


def _texts(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Convert metadata to ASCII text, because it travels in HTTP headers."""
    if not isinstance(metadata, Mapping):
        raise ConfigError(f"the metadata must map names to values; it is {metadata!r}")
    known = {str(name): str(value) for name, value in metadata.items() if value is not None}
    return {
        name: " ".join(value.encode("ascii", "backslashreplace").decode().split())
        for name, value in known.items()
    }


def run_file_of(checkpoint: Path) -> Path | None:
    """Return the record of the run whose directory contains the checkpoint; None without one."""
    # resolve() raises for a loop of links.
    run_file = Path(os.path.realpath(checkpoint)).parent.parent / "run.json"
    return run_file if run_file.is_file() else None


def _run_of(checkpoint: Path, provenance: Mapping[str, Any]) -> dict[str, Any]:
    _require(checkpoint)
    _files_below(checkpoint)
    if (run_file := run_file_of(checkpoint)) is not None:
        return read_run(run_file)
    known = {key: value for key, value in provenance.items() if value}
    if workflow_run := known.get("ci", {}).get("run_id"):
        run_id = f"github-{workflow_run}"
    else:
        run_id = f"sha256-{_tree_digest(checkpoint)[:16]}"
    # The same files are the same run, each time they are stored.
    return {"run_id": run_id, "key": key_of_digest(run_id), **known}


def _tree_digest(path: Path) -> str:
    if path.is_file():
        return sha256_of_file(path)
    names = [f"{name} {sha256_of_file(file)}\n" for name, file in _files_below(path).items()]
    return hashlib.sha256("".join(names).encode()).hexdigest()


def _contents(
    run: dict[str, Any], checkpoint: Path, rows: list[Row], number: int, *, scratch: Path
) -> Contents:
    target = scratch / "metrics.json"
    document = {"run_id": str(run["run_id"]), "run_number": number, "rows": rows}
    target.write_text(json.dumps(document) + "\n", encoding="utf-8")
    records = Group(RECORDS, (Item(metrics_key(number), target),))
    return Contents(run, (_checkpoint(checkpoint, number), records))


def _checkpoint(path: Path, number: int) -> Group:
    if is_complete(path):
        return checkpoint_group(path, number)
    keys = checkpoint_prefix(number, find_step(path))
    return Group("checkpoint", tuple(Item(keys + name, file) for name, file in _files_below(path).items()))


def _files_below(path: Path) -> dict[str, Path]:
    """Return a checkpoint's files by their names in it. Raises ConfigError for a name that is not UTF-8."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    root = path.parent if path.is_file() else path
    found = {file.relative_to(root).as_posix(): file for file in files}
    if odd := next((file for name, file in found.items() if not is_utf8(name)), None):
        raise ConfigError(f"{odd}: the name is not UTF-8, so no store can hold the file; rename it")
    return found


def _require(path: Path) -> None:
    if not path.exists():
        raise ConfigError(f"{path}: there is no such file or directory")


def read_metrics(path: Path) -> list[Row]:
    """Return the rows of a JSON document (an object, a list, or `{"rows": […]}`) or of a JSON-lines file.

    The last line may be cut off. Raises ConfigError when the file is missing or holds anything else.
    """
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file or directory") from None
    except DamagedFileError as error:
        raise ConfigError(f"the metrics cannot be read: {error}") from None
    try:
        value = parse_json(content, str(path))
    except DamagedFileError:
        return _lines(path, content)
    rows = value.get("rows", [value]) if isinstance(value, dict) else value
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{path}: is not a metrics file, which holds a JSON object or a list of objects")
    return rows


def find_step(checkpoint: Path) -> int | None:
    """Return a checkpoint's step from the manifest beside it, its name or its folder's name; else None.

    Names such as `step-00000500`, `checkpoint-500.pt` and `global_step500` contain a step.
    """
    folder = checkpoint.resolve().parent
    if is_complete(folder):
        try:
            return read_manifest(folder).step
        except CheckpointError:
            pass  # another trainer's manifest
    matches = (_STEP.fullmatch(name) for name in (checkpoint.resolve().name, folder.name))
    return next((int(match[1]) for match in matches if match), None)


def _lines(path: Path, content: bytes) -> list[Row]:
    lines = content.splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        row = parse_json_line(line)
        if row is not None:
            rows.append(row)
        elif line.strip() and (number < len(lines) or not rows):
            raise ConfigError(f"{path}: line {number} is not a JSON object, so it is not a metrics file")
    if not rows:
        raise ConfigError(f"{path}: is empty, so it is not a metrics file")
    return rows
