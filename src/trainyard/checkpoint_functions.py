"""The functions of source document 004 on checkpoints and buckets, and the origin of a checkpoint.

`trainyard.functions` and the module of `trainyard store sync` have them too. A run directory needs none of
them: its records name its code.
"""

import logging
from pathlib import Path
from typing import Any

from trainyard.artifacts.store.store_address import open_store
from trainyard.artifacts.upload.standalone_checkpoint import (
    describe_standalone_files,
    object_has_hash,
    run_file_of,
    store_file,
    store_manifest,
)
from trainyard.errors import ConfigError
from trainyard.gateways.git import git_facts, is_older_than_head, repository_facts
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.identity import ci_facts_at

__all__ = ["calculate_file_hash", "create_manifest", "origin_of_checkpoint", "sync_to_s3"]
__all__ += ["upload_manifest", "verify_s3_upload"]
Json = dict[str, Any]
_logger = logging.getLogger(__name__)


def calculate_file_hash(file_path: str) -> str:
    """Return the hex SHA-256 of a file, read once in constant memory."""
    return sha256_of_file(Path(file_path))


def sync_to_s3(local_path: str, s3_bucket: str, s3_key: str, metadata: Json | None = None) -> bool:
    """Upload a file encrypted, and let S3 confirm its SHA-256; on failure log the reason and return False."""
    return store_file(open_store(f"s3://{s3_bucket}"), Path(local_path), s3_key, metadata or {})


def create_manifest(checkpoint_path: str, metrics_path: str, s3_bucket: str, run_number: int) -> Json:
    """Return the manifest of a checkpoint and its metrics, from the files on disk."""
    checkpoint, metrics = Path(checkpoint_path), Path(metrics_path)
    origin = origin_of_checkpoint(checkpoint)
    found = describe_standalone_files(checkpoint, metrics, run_number, provenance=origin)
    return {"bucket": s3_bucket, **found}


def upload_manifest(manifest: Json, s3_bucket: str, run_number: int) -> bool:
    """Store the manifest; return False if the run already has another manifest."""
    return store_manifest(open_store(f"s3://{s3_bucket}"), manifest, run_number)


def verify_s3_upload(s3_key: str, expected_hash: str, s3_bucket: str) -> bool:
    """Return whether S3's own checksum, or else the object read back, has the expected SHA-256."""
    return object_has_hash(open_store(f"s3://{s3_bucket}"), s3_key, expected_hash)


def origin_of_checkpoint(checkpoint: Path, code: Path | None = None) -> Json:
    """Return the origin of a checkpoint: the repository at `code`, or else the one that contains it.

    Without `code`, a checkpoint that is older than the repository's commit has no origin.
    Raises ConfigError when `code` is given and holds no committed code, or the checkpoint has a run's record.
    """
    if code is not None and run_file_of(checkpoint) is not None:
        raise ConfigError(f"--code {code}: {checkpoint} is in a run directory, whose run.json names its code")
    if code is not None and not git_facts(code):
        raise ConfigError(f"--code {code}: no file there is committed. Name a folder of the repository")
    git, why = repository_facts(code or checkpoint), "it is in no repository"
    if git and code is None and is_older_than_head(checkpoint):
        git, why = {}, f"it is older than commit {git['commit'][:12]} of the repository that holds it"
    if not git and run_file_of(checkpoint) is None:
        _logger.warning(
            "%s: its commit is unknown, because %s; --code DIR names the repository of its code",
            str(checkpoint).encode(errors="backslashreplace").decode(),
            why,
        )
    return {"git": git, "ci": ci_facts_at(git.get("commit"))}
