"""Map the keys of a run's objects to paths below a run directory, and never outside it.

Names only; nothing is read or written. The manifest is not trusted, because it may be forged.
"""

from collections.abc import Iterable
from pathlib import PurePosixPath

from trainyard.artifacts.record.manifest import ManifestObject, RunManifest
from trainyard.artifacts.store.layout import (
    belongs_to_checkpoint,
    identity_key,
    metrics_key,
    records_version_of,
    run_prefix,
)
from trainyard.errors import VerificationError
from trainyard.run.directory import step_name

_METRICS = PurePosixPath("metrics.json")


def records_of(manifest: RunManifest) -> list[ManifestObject]:
    """Return the records of this manifest, without those that only earlier ones listed."""
    rest = [entry for entry in manifest.objects if not belongs_to_checkpoint(entry.key)]
    if manifest.is_open:
        return [entry for entry in rest if entry.key.startswith(manifest.records)]
    return [entry for entry in rest if records_version_of(entry.key) is None]


def places_of(entries: Iterable[ManifestObject], run_number: int) -> dict[PurePosixPath, ManifestObject]:
    """Return the path in the run directory of each object that has one; the claim of the number has none.

    Raises VerificationError for a key that does not belong to the run, leads outside the directory, or shares
    its path with another.
    """
    found: dict[PurePosixPath, ManifestObject] = {}
    for entry in entries:
        if entry.key == identity_key(run_number):
            continue
        place = _place_of(entry.key, run_number)
        if place in found:
            raise VerificationError(f"{entry.key!r}: has the same path as {found[place].key!r}, {place}")
        found[place] = entry
    document = found.get(_METRICS)
    if document and document.key == metrics_key(run_number) and PurePosixPath("run.json") in found:
        del found[_METRICS]  # a run directory has these rows in its metrics.jsonl
    return found


def _place_of(key: str, run_number: int) -> PurePosixPath:
    if key == metrics_key(run_number):
        return _METRICS
    prefix = run_prefix(run_number)
    if not key.startswith(prefix):
        raise VerificationError(f"{key!r}: not an object of run {run_number}")
    first, *rest = key.removeprefix(prefix).split("/")
    if rest and records_version_of(key) is not None:
        return safe_place(key, rest)
    step = first.removeprefix("checkpoint-")
    if rest and first != step and step.isascii() and step.isdecimal() and len(step) <= 18:
        return PurePosixPath("checkpoints", step_name(int(step)), safe_place(key, rest))
    return safe_place(key, [first, *rest])


def safe_place(key: str, parts: list[str]) -> PurePosixPath:
    """Return the path of these parts of `key`. Raises VerificationError when it is not a safe path."""
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise VerificationError(
            f"{key!r}: is not the path of a file below a run directory. It was not written."
        )
    return PurePosixPath(*parts)
