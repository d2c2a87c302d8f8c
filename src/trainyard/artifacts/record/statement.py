"""Describe a run as an in-toto statement: the stored objects by digest, and their provenance.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md. The statement is part of the run's
manifest and is signed with it. Pure: facts in, plain data out; unknown facts are omitted, never guessed.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from trainyard.artifacts.record.manifest import ManifestObject, RunManifest
from trainyard.run.untrusted_files import same_json

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:trainyard:training-run:v1"
_FACTS = (
    *("version", "created", "seed", "git", "lock_sha256", "config_sha256", "data", "image_digest"),
    *("hardware", "parent", "history", "model", "plan"),
)
"""Keys copied from `run.json` unchanged."""


def statement_of(
    run: Mapping[str, Any],
    run_number: int,
    objects: Iterable[ManifestObject],
    *,
    config: Mapping[str, Any],
    supersedes: Mapping[str, str],
) -> dict[str, Any]:
    """Return the statement about `objects`; `config` is the resolved configuration, empty if unknown."""
    known = {key: run.get(key) for key in _FACTS}
    predicate = {
        "run_id": run["run_id"],
        "run_number": run_number,
        **known,
        "runner": run.get("ci"),
        "config": dict(config),
        "parent_manifest": dict(supersedes),
    }
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": entry.key, "digest": {"sha256": entry.sha256}} for entry in objects],
        "predicateType": PREDICATE_TYPE,
        "predicate": {key: value for key, value in predicate.items() if value not in (None, {}, [], "")},
    }


def resolved_config(values: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` if their digest is the one in the run's record, else nothing."""
    try:
        canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        return {}
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return dict(values) if digest == run.get("config_sha256") else {}


def restate(manifest: RunManifest) -> RunManifest:
    """Return `manifest`, which was made from an earlier one, with a statement that fits its objects."""
    predicate = manifest.statement.get("predicate")
    config = predicate.get("config") if isinstance(predicate, dict) else None
    run = {**manifest.provenance, "run_id": manifest.run_id}
    statement = statement_of(
        run, manifest.run_number, manifest.objects, config=_plain(config), supersedes=manifest.supersedes
    )
    return replace(manifest, statement=statement)


def statement_problems(manifest: RunManifest) -> list[str]:
    """Return the differences between the statement and its manifest."""
    given = manifest.statement
    name = f"run-{manifest.run_number}: the statement"
    predicate = given.get("predicate")
    if not isinstance(predicate, dict):
        return [f"{name} has no predicate"]
    config, expected = predicate.get("config"), restate(manifest).statement
    problems = [
        f"{name} has another {key} than the manifest"
        for key in ("_type", "predicateType", "subject")
        if not same_json(given.get(key), expected[key])
    ]
    if config and not resolved_config(_plain(config), manifest.provenance):
        problems.append(f"{name} has another configuration than the run's record")
    wanted = expected["predicate"]
    other = sorted(key for key in {*wanted, *predicate} if not same_json(wanted.get(key), predicate.get(key)))
    return problems + [f"{name} has another {key} than the manifest" for key in other]


def _plain(config: object) -> dict[str, Any]:
    return config if isinstance(config, dict) else {}
