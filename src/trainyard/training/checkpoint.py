"""Checkpoints in `checkpoints/step-NNNNNNNN/`: temporary name, fsync, rename, and the manifest last.

    .step-00000500.tmp/ --fsync, rename--> step-00000500/ --manifest.json--> a checkpoint

Reading starts from the manifest: what does not verify is never loaded. It knows no store and no schedule.
"""

import json
import logging
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from trainyard.errors import CheckpointError, IncompatibleCheckpointError
from trainyard.run.checkpoints import (
    MANIFEST_NAME,
    CheckpointManifest,
    describe_files,
    verify_checkpoint,
    write_manifest,
)
from trainyard.run.commands import resume_command
from trainyard.run.directory import RunDirectory
from trainyard.run.files import sha256_of_file, sync_directory, write_json_atomically
from trainyard.training.placement import own_part
from trainyard.training.state import TrainingState, generator_states, restore_generators
from trainyard.training.world import ALONE, World, peers_expected

STATE_NAME = "trainer_state.json"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedCheckpoint:
    """What a save did."""

    path: Path
    size: int
    """Bytes on disk."""
    seconds: float
    """How long training waited."""
    manifest_sha256: str
    """Of the manifest as it was written: what ties a stored checkpoint to its run."""


@dataclass(frozen=True)
class SaveOrigin:
    """Whose checkpoint it is, and what it is good for."""

    run_id: str
    fits: Mapping[str, Any]
    """What a configuration must agree with to resume from it."""


def save_checkpoint(
    directory: RunDirectory, state: TrainingState, *, origin: SaveOrigin, world: World = ALONE
) -> SavedCheckpoint:
    """Write the checkpoint of `state.step`, replacing a broken or older one of that step.

    All processes of the world write their shards, the main one the rest. When it cannot be written all raise
    CheckpointError; the temporary files are then removed and existing checkpoints untouched.
    """
    start = time.perf_counter()
    final = directory.checkpoint(state.step)
    temporary = final.with_name(f".{final.name}.tmp")
    try:
        world.on_main(lambda: _make_empty(temporary))
        _write_shards(temporary, state, world)
        generators = world.gather(generator_states())
        size, manifest_sha256 = world.on_main(
            lambda: _complete(temporary, final, state, (origin, generators))
        )
    except (OSError, CheckpointException) as error:
        if world.is_main:
            _remove(temporary)
        raise CheckpointError(_save_failure(directory, state, error)) from error
    return SavedCheckpoint(final, size, time.perf_counter() - start, manifest_sha256)


def _make_empty(path: Path) -> None:
    _remove(path)
    path.mkdir(parents=True)


def _complete(
    temporary: Path, final: Path, state: TrainingState, record: tuple[SaveOrigin, list[Any]]
) -> tuple[int, str]:
    """Add the trainer's record, name and mark the checkpoint; returns its bytes and manifest's SHA-256."""
    origin, generators = record
    _write_record(temporary, state, origin.fits, generators)
    files = describe_files(temporary)
    _remove(final)
    temporary.rename(final)
    sync_directory(final.parent)
    write_manifest(final, CheckpointManifest(state.step, origin.run_id, time.time(), files))
    return sum(file.size for file in files), sha256_of_file(final / MANIFEST_NAME)


def _write_shards(path: Path, state: TrainingState, world: World) -> None:
    writer = FileSystemWriter(path, sync_files=True)
    with _single_process(), peers_expected():
        save(
            state.tensors(), storage_writer=writer, process_group=world.control, no_dist=world.control is None
        )


def _write_record(path: Path, state: TrainingState, fits: Mapping[str, Any], generators: list[Any]) -> None:
    extra = {
        "step": state.step,
        "fits": dict(fits),
        "seconds": state.seconds,
        "generators": generators[0],
        "generators_of_other_ranks": generators[1:],
        "data_position": state.data_position,
        "pending_row": state.pending_row,
    }
    write_json_atomically(path / STATE_NAME, extra)
    sync_directory(path)


@contextmanager
def _single_process() -> Iterator[None]:
    """Without torch's warning that there is one process, which is what was asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _save_failure(directory: RunDirectory, state: TrainingState, error: BaseException) -> str:
    free = shutil.disk_usage(directory.path).free / 1e6
    needed = sum(own_part(t).nbytes for part in state.tensors().values() for t in part.values()) / 1e6
    cause = (str(error).strip() or type(error).__name__).splitlines()[-1]
    if free < needed:
        cause = f"No space left on {directory.checkpoints}"
    whole = whole_steps(directory)
    kept = f"step {whole[-1]} is whole" if whole else "there is no earlier checkpoint"
    return (
        f"{cause} ({free:,.1f} MB free, a checkpoint needs {needed:,.1f} MB). "
        f"Step {state.step} was not saved; {kept}.\n"
        f"Free space in {directory.checkpoints}, then: {resume_command(directory.path)}"
    )


def _remove(path: Path) -> None:
    """Remove a checkpoint, its marker first: a crash in between leaves no half one that looks whole."""
    (path / MANIFEST_NAME).unlink(missing_ok=True)
    if path.exists():
        shutil.rmtree(path)


def whole_steps(directory: RunDirectory) -> list[int]:
    """Steps whose checkpoint has a manifest, oldest first; their bytes are not read."""
    return [s for s in directory.checkpoint_steps() if (directory.checkpoint(s) / MANIFEST_NAME).is_file()]


def remove_old_checkpoints(directory: RunDirectory, keep_last: int, *, newest: int) -> list[int]:
    """Remove all checkpoints up to step `newest` but the last `keep_last`; returns the steps removed.

    Later ones, which a resume has passed over as broken, do not count as kept.
    """
    doomed = [step for step in whole_steps(directory) if step <= newest][:-keep_last]
    for step in doomed:
        _remove(directory.checkpoint(step))
    return doomed


def remove_leftovers(directory: RunDirectory) -> None:
    """Clear what killed saves left: temporary names, and directories that never got their manifest."""
    for path in directory.checkpoints.glob(".step-*.tmp"):
        _remove(path)
    for step in set(directory.checkpoint_steps()) - set(whole_steps(directory)):
        _remove(directory.checkpoint(step))


def set_aside_after(directory: RunDirectory, step: int) -> list[int]:
    """Take the checkpoints after `step` out of the run: broken ones, or those of an abandoned future.

    They are kept under hidden names, neither resumed from nor stored any more. Returns their steps.
    """
    later = [other for other in directory.checkpoint_steps() if other > step]
    for other in later:
        path = directory.checkpoint(other)
        aside = path.with_name(f".set-aside-{path.name}")
        _remove(aside)
        path.rename(aside)
    return later


def newest_good_checkpoint(directory: RunDirectory, reject: Callable[[int, str], None]) -> Path | None:
    """The newest checkpoint that verifies, or None; `reject(step, reason)` hears of each passed over."""
    for step in reversed(directory.checkpoint_steps()):
        path = directory.checkpoint(step)
        try:
            verify_checkpoint(path)
            read_state(path)
        except CheckpointError as error:
            reject(step, str(error))
        else:
            return path
    return None


def read_state(path: Path) -> dict[str, Any]:
    """The trainer's own record in the checkpoint at `path`. Raises CheckpointError when it is unreadable."""
    try:
        value = json.loads((path / STATE_NAME).read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / STATE_NAME}: not readable ({error})") from None
    if not isinstance(value, dict) or not {"step", "fits", "generators"} <= value.keys():
        raise CheckpointError(f"{path / STATE_NAME}: not the record of a trainer")
    return value


def check_fit(path: Path, fits: Mapping[str, Any]) -> None:
    """Raise IncompatibleCheckpointError naming each difference of the checkpoint at `path` from `fits`."""
    saved = read_state(path)["fits"]
    names = sorted(saved.keys() | fits.keys())
    different = [
        f"  {name}: the checkpoint has {saved.get(name)}, this run has {fits.get(name)}"
        for name in names
        if saved.get(name) != fits.get(name)
    ]
    if different:
        raise IncompatibleCheckpointError(
            f"{path} does not fit this run:\n" + "\n".join(different) + "\n"
            "Set these back, or start afresh with another --run-dir and --resume none. Nothing was started."
        )


def load_checkpoint(path: Path, state: TrainingState, world: World = ALONE) -> None:
    """Load the verified checkpoint at `path` into `state`, random generators included.

    It may have been written by another number of processes: every process reads the parts it needs.
    """
    try:
        with _single_process(), peers_expected():
            load(
                state.tensors(),
                storage_reader=FileSystemReader(path),
                process_group=world.control,
                no_dist=world.control is None,
            )
    except (OSError, CheckpointException) as error:
        raise CheckpointError(f"{path}: could not be loaded ({error})") from error
    record = read_state(path)
    generators = [record["generators"], *record.get("generators_of_other_ranks", [])]
    restore_generators(generators[min(world.rank, len(generators) - 1)])
    state.step = int(record["step"])
    state.seconds = float(record.get("seconds", 0.0))
    state.data_position = record.get("data_position")
    state.pending_row = record.get("pending_row")
