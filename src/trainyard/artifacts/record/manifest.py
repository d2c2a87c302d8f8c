"""A run's manifest: every object with its size, SHA-256 and store checksum, and the run's provenance.

It is stored last and never overwritten. When the same run resumes, a further manifest names the one that it
supersedes by key and SHA-256, so that the manifests of a run form a chain. This module only builds and reads
manifests; `sync` decides, `verify` judges.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trainyard.artifacts.store.layout import (
    belongs_to_checkpoint,
    checkpoint_step_of,
    manifest_key,
    manifest_version_of,
    records_prefix,
    records_version_of,
    run_prefix,
)
from trainyard.artifacts.store.object_store import Store, StoredObject
from trainyard.errors import DamagedFileError, VerificationError
from trainyard.run.checkpoint_manifest import require_text, whole_number
from trainyard.run.digests import require_digest
from trainyard.run.untrusted_files import parse_json_object

_SCHEMA = 1
_END_OF_TIME = 253402300800.0
"""The year 10000 in Unix seconds."""


@dataclass(frozen=True)
class ManifestObject:
    """One object of a run."""

    key: str
    """Relative to the store's prefix."""
    size: int
    """Bytes."""
    sha256: str
    """Lower-case hex, of the bytes on the trainer's disk."""
    checksum: Mapping[str, Any] = field(default_factory=dict)
    """The store's own checksum (see `store.StoredObject`); empty if it computes none and was read back."""
    etag: str = ""

    @classmethod
    def of(cls, stored: StoredObject, sha256: str) -> "ManifestObject":
        return cls(stored.key, stored.size, sha256, dict(stored.checksum), stored.etag)


@dataclass(frozen=True)
class PrunedCheckpoint:
    """A checkpoint that retention removed: its description stays on record after its bytes are gone."""

    step: int
    digest: str
    """The SHA-256 of its own manifest, which identifies it in runs that started from it."""
    size: int
    """Bytes."""
    time: float
    """Unix seconds."""
    by: str
    reason: str


@dataclass(frozen=True)
class RunManifest:
    """The objects that a run left in the store, and its provenance."""

    run_id: str
    run_number: int
    created: float
    """Unix seconds."""
    objects: tuple[ManifestObject, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """`run.json` without its outcome."""
    outcome: Mapping[str, Any] = field(default_factory=dict)
    supersedes: Mapping[str, str] = field(default_factory=dict)
    """`key` (relative) and `sha256` of the manifest before this one; empty for the first."""
    leftovers: tuple[str, ...] = ()
    """Keys of checkpoint files that an interrupted sync sent and that can no longer be verified."""
    records: str = ""
    """Prefix of this manifest's records if the run was still going; else empty."""
    pruned: tuple[PrunedCheckpoint, ...] = ()
    """Checkpoints removed since the chain's first manifest, which still lists them; oldest step first."""
    statement: Mapping[str, Any] = field(default_factory=dict)
    """The in-toto statement about the objects (`statement`); keys in it are relative to the prefix."""

    @property
    def version(self) -> int:
        """The position in the chain, from 1."""
        before = self.supersedes.get("key")
        return 1 + manifest_version_of(before) if before else 1

    @property
    def is_open(self) -> bool:
        """Whether the run was still going: a later manifest may list checkpoints that are being uploaded."""
        return bool(self.records)

    @property
    def parent_digest(self) -> str | None:
        """The digest of the checkpoint that the run started from (`Checkpoint.digest`); None without one."""
        parent = self.provenance.get("parent")
        digest = parent.get("manifest_sha256") if isinstance(parent, Mapping) else None
        return str(digest) if digest else None

    @property
    def records_prefix(self) -> str:
        """The prefix of the records that describe the run as this manifest does."""
        return self.records or run_prefix(self.run_number)

    def may_be_under_way(self, key: str) -> bool:
        """Return whether an unlisted object may belong to a sync of the running run that is still sending.

        This includes a sync that retention overtook by putting a manifest without records of its own.
        """
        if not self.is_open:
            # When a followed run resumes, the follower sends its records first, then the open manifest.
            goes_on = self.outcome.get("status") != "succeeded"
            return goes_on and records_version_of(key) == self.version + 1
        if (version := records_version_of(key)) is not None:
            return version > (records_version_of(self.records) or self.version - 1)
        step = checkpoint_step_of(key)
        return step is not None and step not in self._steps

    def may_be_left_over(self, key: str) -> bool:
        """Return whether an interrupted sync can have sent the object.

        It can, if the object belongs to an unlisted checkpoint, or to records up to this manifest's version.
        """
        if (version := records_version_of(key)) is not None:
            return version <= self.version
        return belongs_to_checkpoint(key) and checkpoint_step_of(key) not in self._steps

    @property
    def _steps(self) -> frozenset[int | None]:
        return frozenset(
            checkpoint_step_of(entry.key) for entry in self.objects if belongs_to_checkpoint(entry.key)
        )

    def to_json(self, prefix: str) -> dict[str, Any]:
        """Return plain data with full keys, as the bucket knows them. Unknown parts are omitted."""
        optional = {
            "parent": self.provenance.get("parent"),
            "provenance": dict(self.provenance),
            "outcome": dict(self.outcome),
            "supersedes": _key_with(self.supersedes, prefix),
            "leftovers": [prefix + key for key in self.leftovers],
            "records": self.records and prefix + self.records,
            "pruned": [asdict(each) for each in self.pruned],
            "statement": dict(self.statement),
        }
        return {
            "schema": _SCHEMA,
            "run_id": self.run_id,
            "run_number": self.run_number,
            "created": self.created,
            "prefix": prefix,
            **{key: value for key, value in optional.items() if value},
            "objects": [_object_to_json(entry, prefix) for entry in self.objects],
        }

    def by_key(self) -> dict[str, ManifestObject]:
        return {entry.key: entry for entry in self.objects}


@dataclass(frozen=True)
class StoredManifest:
    """A manifest as read from the store."""

    key: str
    sha256: str
    """SHA-256 of the object's bytes."""
    manifest: RunManifest


def manifest_bytes(manifest: RunManifest, prefix: str) -> bytes:
    """Return the content of the manifest object."""
    return (_indented(manifest.to_json(prefix), 3) + "\n").encode()


def _indented(value: Any, levels: int, margin: str = "\n") -> str:
    """Return JSON with this many indented levels; list entries take one line each, encoded at C's speed."""
    if not value or not levels or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    inner = margin + "  "
    if isinstance(value, list):
        lines = (json.dumps(each, ensure_ascii=False) for each in value)
        return f"[{inner}{f',{inner}'.join(lines)}{margin}]"
    lines = (f"{json.dumps(name)}: {_indented(each, levels - 1, inner)}" for name, each in value.items())
    return f"{{{inner}{f',{inner}'.join(lines)}{margin}}}"


def read_chain(store: Store, run_number: int, known: tuple[StoredManifest, ...] = ()) -> list[StoredManifest]:
    """Return all manifests of the run, oldest first; those after `known` are read now.

    Raises VerificationError for a damaged one.
    """
    chain = list(known)
    while True:
        key = manifest_key(run_number, len(chain) + 1)
        content = store.read_object(key)
        if content is None:
            return chain
        chain.append(
            StoredManifest(key, hashlib.sha256(content).hexdigest(), parse_run_manifest(content, key))
        )


def parse_run_manifest(content: bytes, key: str) -> RunManifest:
    """Read a manifest object. Raises VerificationError naming `key` when it is not one."""
    try:
        value = parse_json_object(content, key)
        if whole_number(value["schema"]) != _SCHEMA:
            raise ValueError(f"schema {value['schema']}, this version reads {_SCHEMA}")
        prefix = _text(value.get("prefix", ""))
        run_number = whole_number(value["run_number"])
        return RunManifest(
            run_id=require_text(value["run_id"]),
            run_number=run_number,
            created=_seconds(value["created"]),
            objects=tuple(_object_from_json(entry, prefix) for entry in _list(value["objects"])),
            provenance=_object(value.get("provenance", {})),
            outcome=_object(value.get("outcome", {})),
            supersedes=_key_without(_object(value.get("supersedes", {})), prefix),
            leftovers=tuple(_text(each).removeprefix(prefix) for each in _list(value.get("leftovers", []))),
            records=_own_records(_text(value.get("records", "")).removeprefix(prefix), run_number),
            pruned=tuple(_pruned_from_json(each) for each in _list(value.get("pruned", []))),
            statement=_object(value.get("statement", {})),
        )
    except DamagedFileError as error:
        raise VerificationError(str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise VerificationError(f"{key}: not a readable manifest ({type(error).__name__}: {error})") from None


def _own_records(records: str, run_number: int) -> str:
    """Return the records prefix of an open manifest, which must be a folder of its own run."""
    version = records_version_of(records)
    if records and (version is None or records != records_prefix(run_number, version)):
        raise ValueError(f"records are in {records[:200]!r}, which is not a folder of run {run_number}")
    return records


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{str(value)[:80]!r} is not an object")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:80]!r} is not a list")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:80]!r} is not a text")
    return value


def _seconds(value: object) -> float:
    """Return a time that can be displayed. Raises TypeError or ValueError for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{str(value)[:80]!r} is not a time")
    if not 0 <= value < _END_OF_TIME:
        raise ValueError(f"{value} is not a time in Unix seconds")
    return float(value)


def _checksum(value: object) -> dict[str, Any]:
    """Return a store's checksum, or an empty mapping. Raises TypeError for anything else."""
    found = _object(value)
    kinds = {"algorithm": str, "type": str, "value": str, "part_size": int}
    for name, kind in kinds.items():
        if name in found and (not isinstance(found[name], kind) or found[name] is True):
            raise TypeError(f"store_checksum's {name} is {str(found[name])[:80]!r}")
    if found and ("algorithm" not in found or "value" not in found):
        raise TypeError("store_checksum has no algorithm, or no value")
    return found


def _key_with(reference: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {**reference, "key": prefix + reference["key"]} if reference else {}


def _key_without(reference: Mapping[str, str], prefix: str) -> dict[str, str]:
    if not reference:
        return {}
    return {**reference, "key": _text(reference["key"]).removeprefix(prefix)}


def _object_to_json(entry: ManifestObject, prefix: str) -> dict[str, Any]:
    value: dict[str, Any] = {"key": prefix + entry.key, "size": entry.size, "sha256": entry.sha256}
    if entry.checksum:
        value["store_checksum"] = dict(entry.checksum)
    if entry.etag:
        value["etag"] = entry.etag
    return value


def _pruned_from_json(value: Mapping[str, Any]) -> PrunedCheckpoint:
    return PrunedCheckpoint(
        step=whole_number(value["step"]),
        digest=_text(value["digest"]),
        size=whole_number(value["size"]),
        time=_seconds(value["time"]),
        by=_text(value["by"]),
        reason=_text(value["reason"]),
    )


def _object_from_json(value: Mapping[str, Any], prefix: str) -> ManifestObject:
    key, sha256 = require_text(value["key"]), require_digest(value["sha256"])
    if not key.startswith(prefix):
        raise ValueError(f"{key} is outside the prefix {prefix}")
    return ManifestObject(
        key=key.removeprefix(prefix),
        size=whole_number(value["size"]),
        sha256=sha256,
        checksum=_checksum(value.get("store_checksum", {})),
        etag=_text(value.get("etag", "")),
    )
