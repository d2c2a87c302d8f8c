"""What a proof needs to know of the store: the run's number, whether it is whole there, its stored steps.

Trouble is an answer here, not an error: the proof shows it. Nothing is changed.
"""

import re
from dataclasses import dataclass

from trainyard.artifacts.chain import newest_manifest
from trainyard.artifacts.manifest import RunManifest
from trainyard.artifacts.numbers import number_of_run
from trainyard.artifacts.store import Store
from trainyard.artifacts.verify import Depth, Verification, verify_run
from trainyard.errors import ServiceError, TrainyardError
from trainyard.run.directory import RunDirectory

_CHECKPOINT = re.compile(r"run-\d+/checkpoint-(\d+)/")
_READ_BACK_BYTES = 10_000_000_000
"""Up to here a run is read back whole unless a depth is asked for."""


@dataclass(frozen=True)
class Inspection:
    """What was found; None where nothing was."""

    run_number: int | None = None
    verification: Verification | None = None
    steps: frozenset[int] | None = None
    """The steps whose checkpoints the manifest lists."""
    compared: str = ""
    """What the verification compared with what."""
    trouble: str | None = None
    """Why the store could not be asked, or did not fit the directory."""
    unreachable: bool = False
    """The trouble is the store's, so that asking again later may help."""


def inspect_run(
    store: Store, run_id: str, *, directory: RunDirectory, run_number: int | None, depth: Depth | None
) -> Inspection:
    """Verify the run in `directory` against the store; `run_number` None looks the number up by `run_id`."""
    number = run_number
    try:
        number = number_of_run(store, run_id) if number is None else number
        if number is None:
            return Inspection()
        _, manifest, _ = newest_manifest(store, number)
        deep = depth or _depth_for(manifest)
        verification = verify_run(store, number, depth=deep, run_directory=directory)
        return Inspection(number, verification, _steps(manifest), compared(deep, manifest, directory))
    except TrainyardError as error:
        return Inspection(number, trouble=str(error), unreachable=isinstance(error, ServiceError))


def compared(depth: Depth, manifest: RunManifest | None, directory: RunDirectory | None) -> str:
    """What a verification to `depth` compares with what; without a directory no disk is looked at.

    Checkpoints that retention has removed from the disk cannot be compared with it, and it is said so.
    """
    if directory is None:
        return _compared(depth, "in the store and in the manifest", "the manifest")
    gone = _steps(manifest) - set(directory.checkpoint_steps())
    words = _compared(depth, "on disk, in the store and in the manifest", "disk and manifest")
    return words + (f" ({len(gone)} of the checkpoints are no longer on disk)" if gone else "")


def _compared(depth: Depth, places: str, others: str) -> str:
    if depth is Depth.FULL:
        return f"SHA-256 equal {places}"
    sampled = ", a sample read back" if depth is Depth.SAMPLE else ""
    return f"the store's own checksums equal {others}{sampled}"


def _depth_for(manifest: RunManifest | None) -> Depth:
    total = sum(entry.size for entry in manifest.objects) if manifest else 0
    return Depth.FULL if total <= _READ_BACK_BYTES else Depth.SAMPLE


def _steps(manifest: RunManifest | None) -> frozenset[int]:
    keys = [entry.key for entry in manifest.objects] if manifest else []
    return frozenset(int(match[1]) for key in keys if (match := _CHECKPOINT.match(key)))
