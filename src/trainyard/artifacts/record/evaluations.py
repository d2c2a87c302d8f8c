"""The evaluations of a stored run: those among its records, and those that were done after it was stored.

The second kind is an object of its own beside the run, because what a manifest lists never changes.
"""

import json
from collections.abc import Mapping
from typing import Any

from trainyard.artifacts.record.manifest import RunManifest
from trainyard.artifacts.store.layout import evaluations_key
from trainyard.artifacts.store.object_store import Store, put_and_confirm
from trainyard.errors import RunConflictError
from trainyard.run.untrusted_files import parse_json_line


def read_evaluations(store: Store, manifest: RunManifest) -> list[dict[str, Any] | None]:
    """Return the evaluations, oldest first; None replaces an unreadable line."""
    keys = (f"{manifest.records_prefix}evaluations.jsonl", evaluations_key(manifest.run_number))
    lines = [line for key in keys for line in (store.read_object(key) or b"").splitlines()]
    return sorted(map(parse_json_line, lines), key=_time)


def add_evaluation(store: Store, run_number: int, record: Mapping[str, Any]) -> None:
    """Record an evaluation of a run that is stored. Raises RunConflictError if another came first."""
    key = evaluations_key(run_number)
    before = store.read_object(key)
    content = (before or b"") + json.dumps(record, ensure_ascii=False).encode() + b"\n"
    if not put_and_confirm(store, key, content, old=before):
        raise RunConflictError(f"{key}: another evaluation was recorded at the same time. Evaluate it again.")


def _time(record: Mapping[str, Any] | None) -> float:
    time = None if record is None else record.get("time")
    return time if isinstance(time, int | float) else 0.0
