"""A run's manifest: every object with its size, SHA-256 and store checksum, and the run's provenance.

It is stored last and never overwritten. When the same run resumes, a further manifest names the one that it
supersedes by key and SHA-256, so that the manifests of a run form a chain. This module only builds and reads
manifests; `sync` decides, `verify` judges.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from typing import Annotated, Any, cast

from pydantic import AfterValidator, ConfigDict, FailFast, Field, Strict, ValidationInfo
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict

from trainyard.artifacts.store.layout import (
    belongs_to_checkpoint,
    checkpoint_step_of,
    is_manifest,
    is_open_manifest,
    manifest_prefix,
    records_prefix,
    records_version_of,
    run_prefix,
)
from trainyard.artifacts.store.object_store import Store, StoredObject
from trainyard.errors import DamagedFileError, VerificationError
from trainyard.run.record_models import (
    OF_A_FILE,
    Count,
    Digest,
    Name,
    SchemaNumber,
    Text,
    Whole,
    validate_record,
)
from trainyard.run.untrusted_files import parse_json_object


def _own_key(key: str, info: ValidationInfo) -> str:
    """Return a key without the prefix of its store, which a manifest that is read has as its context."""
    prefix = str(info.context or "")
    if not key.startswith(prefix):
        raise ValueError(f"{key!r:.80} is outside the prefix {prefix!r:.80}")
    return key.removeprefix(prefix)


def _any_key(key: str, info: ValidationInfo) -> str:
    return key.removeprefix(str(info.context or ""))


# The year 10000 can be displayed, and no later one.
Time = Annotated[float, Field(strict=True, ge=0, lt=253402300800)]


class Checksum(TypedDict, total=False):
    """A store's own checksum of an object (see `store.StoredObject`)."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    algorithm: Text
    value: Text
    type: Text
    part_size: Whole


def _require_complete_checksum(checksum: Checksum) -> Checksum:
    if checksum and not {"algorithm", "value"} <= checksum.keys():
        raise ValueError("has no algorithm, or no value")
    return checksum


def _require_reference(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    if value and not isinstance(value.get("key"), str):
        raise ValueError("key is not a text")
    return {**value, "key": _any_key(value["key"], info)} if value else {}


@dataclass(frozen=True, config=OF_A_FILE)
class ManifestObject:
    """One object of a run."""

    key: Annotated[Name, AfterValidator(_own_key)]
    """Relative to the store's prefix."""
    size: Count
    """Bytes."""
    sha256: Digest
    """Lower-case hex, of the bytes on the trainer's disk."""
    checksum: Annotated[
        Checksum, AfterValidator(_require_complete_checksum), Field(alias="store_checksum")
    ] = field(default_factory=lambda: Checksum())
    """Empty if the store computes none and the object was read back."""
    etag: Text = ""

    @classmethod
    def of(cls, stored: StoredObject, sha256: str) -> "ManifestObject":
        return cls(stored.key, stored.size, sha256, cast(Checksum, dict(stored.checksum)), stored.etag)


@dataclass(frozen=True, config=OF_A_FILE)
class PrunedCheckpoint:
    """A checkpoint that retention removed: its description stays on record after its bytes are gone."""

    step: Count
    digest: Text
    """The SHA-256 of its own manifest, which identifies it in runs that started from it."""
    size: Count
    """Bytes."""
    time: Time
    """Unix seconds."""
    by: Text
    reason: Text


@dataclass(frozen=True, config=OF_A_FILE)
class RunManifest:
    """The objects that a run left in the store, and its provenance."""

    schema: SchemaNumber = field(default=1, kw_only=True)
    run_id: Name
    run_number: Count
    created: Time
    """Unix seconds."""
    objects: Annotated[tuple[ManifestObject, ...], FailFast()]
    provenance: dict[str, Any] = field(default_factory=dict)
    """`run.json` without its outcome."""
    outcome: dict[str, Any] = field(default_factory=dict)
    version: Annotated[int, Strict(), Field(ge=1)] = 1
    """The position in the chain, from 1."""
    run_key: Text = ""
    """The key of the run that owns the number; empty for a run of an earlier version."""
    supersedes: Annotated[dict[str, Any], AfterValidator(_require_reference)] = field(default_factory=dict)
    """`key` (relative) and `sha256` of the manifest before this one; empty for the first."""
    unlisted_objects: Annotated[tuple[Annotated[Text, AfterValidator(_any_key)], ...], FailFast()] = ()
    """Keys of checkpoint files that an interrupted sync sent and that can no longer be verified."""
    records: Annotated[Text, AfterValidator(_any_key)] = ""
    """Prefix of this manifest's records if the run was still going; else empty."""
    pruned: Annotated[tuple[PrunedCheckpoint, ...], FailFast()] = ()
    """Checkpoints removed since the chain's first manifest, which still lists them; oldest step first."""
    statement: dict[str, Any] = field(default_factory=dict)
    """The in-toto statement about the objects (`statement`); keys in it are relative to the prefix."""

    @property
    def is_open(self) -> bool:
        """Return whether the run was still going.

        A later manifest may list checkpoints that are being uploaded.
        """
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

    def may_be_uploading(self, key: str) -> bool:
        """Return whether an unlisted object may belong to a sync, of a run still going, that is sending now.

        Retention may have put a manifest without records of its own since that sync started.
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

        Such an object belongs to an unlisted checkpoint, or to records up to this manifest's version.
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
            "supersedes": self.supersedes and {**self.supersedes, "key": prefix + self.supersedes["key"]},
            "unlisted_objects": [prefix + key for key in self.unlisted_objects],
            "records": self.records and prefix + self.records,
            "pruned": [asdict(each) for each in self.pruned],
            "statement": dict(self.statement),
        }
        return {
            "schema": self.schema,
            "run_id": self.run_id,
            **({"run_key": self.run_key} if self.run_key else {}),
            "run_number": self.run_number,
            "version": self.version,
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
    return (json.dumps(manifest.to_json(prefix), indent=2, ensure_ascii=False) + "\n").encode()


def read_chain(store: Store, run_number: int, known: tuple[StoredManifest, ...] = ()) -> list[StoredManifest]:
    """Return the manifests of the run, oldest first; those that are not in `known` are read now.

    An open manifest that does not continue the chain lost against another sync, which has stored the same
    objects; it is left out. Raises VerificationError for a damaged one.
    """
    read, candidates = {each.key for each in known}, dict[int, list[StoredManifest]]()
    new = read_manifests(store, [key for key in manifest_keys(store, run_number) if key not in read])
    for found in (*known, *new):
        candidates.setdefault(found.manifest.version, []).append(found)
    chain: list[StoredManifest] = []
    while following := candidates.get(len(chain) + 1):
        before = chain[-1].key if chain else None
        ends = [each for each in following if not is_open_manifest(each.key)]
        fitting = [each for each in following if each.manifest.supersedes.get("key") == before]
        if not (chosen := ends or fitting):
            break
        chain.append(chosen[0])
    return chain


def manifest_keys(store: Store, run_number: int) -> list[str]:
    """Return the keys of the run's manifests, in order of their names."""
    listed = store.list_objects(manifest_prefix(run_number))
    return sorted(found.key for found in listed if is_manifest(found.key))


def read_manifests(store: Store, keys: Iterable[str]) -> list[StoredManifest]:
    """Read manifests; those that are gone are omitted. Raises VerificationError for a damaged one."""
    contents = {key: store.read_object(key) for key in keys}
    return [
        StoredManifest(key, hashlib.sha256(content).hexdigest(), parse_run_manifest(content, key))
        for key, content in contents.items()
        if content is not None
    ]


def parse_run_manifest(content: bytes, key: str) -> RunManifest:
    """Read a manifest object. Raises VerificationError naming `key` when it is not one."""
    try:
        value = parse_json_object(content, key)
        if "schema" not in value:
            raise ValueError("schema is missing")
        if not isinstance(prefix := value.get("prefix", ""), str):
            raise ValueError("prefix is not a text")
        manifest = validate_record(RunManifest, value, context=prefix)
        records, number = manifest.records, manifest.run_number
        version = records_version_of(records)
        if records and (version is None or records != records_prefix(number, version)):
            raise ValueError(f"records are in {records[:200]!r}, which is not a folder of run {number}")
        return manifest
    except DamagedFileError as error:
        raise VerificationError(str(error)) from None
    except ValueError as error:
        raise VerificationError(f"{key}: not a readable manifest ({error})") from None


def _object_to_json(entry: ManifestObject, prefix: str) -> dict[str, Any]:
    value: dict[str, Any] = {"key": prefix + entry.key, "size": entry.size, "sha256": entry.sha256}
    if entry.checksum:
        value["store_checksum"] = dict(entry.checksum)
    if entry.etag:
        value["etag"] = entry.etag
    return value
