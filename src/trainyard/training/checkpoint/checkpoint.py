"""Checkpoints in `checkpoints/step-NNNNNNNN/`: temporary name, fsync, rename, and the manifest last.

    .step-00000500.tmp/ --fsync, rename--> step-00000500/ --manifest.json--> a checkpoint

Reading starts from the manifest: what does not verify is never loaded. Who writes the shards is `shards`'s,
when they are written `checkpoint_save`'s; it knows no store and no schedule.
"""

import logging
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load

from trainyard.errors import CheckpointError, DamagedFileError, IncompatibleCheckpointError
from trainyard.run.checkpoint_manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    describe_files,
    verify_checkpoint,
    write_manifest,
)
from trainyard.run.directory import RunDirectory
from trainyard.run.untrusted_files import read_json_object
from trainyard.run.whole_files import (
    sha256_of_file,
    sync_directory,
    write_bytes_atomically,
    write_json_atomically,
)
from trainyard.training.checkpoint.retention import remove_checkpoint
from trainyard.training.checkpoint.shards import Written, write_index
from trainyard.training.checkpoint.state import Tensors, TrainingState, generator_states, restore_generators
from trainyard.training.checkpoint.stored_index import IndexedReader, read_index, tensors_in
from trainyard.training.runtime.world import ALONE, World, peers_expected

STATE_NAME = "trainer_state.json"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedCheckpoint:
    """What a save did."""

    path: Path
    size: int
    """Bytes on disk."""
    seconds: float
    """From its start until it was whole."""
    manifest_sha256: str
    """Of the manifest as it was written: what ties a stored checkpoint to its run."""
    awaited_seconds: float
    """Seconds of work: without the time from the end of one phase to the edge of a step."""


@dataclass(frozen=True)
class SaveOrigin:
    """Whose checkpoint it is, and what it is good for."""

    run_id: str
    fits: Mapping[str, Any]
    """What a configuration must agree with to resume from it."""


def trainer_record(state: TrainingState, fits: Mapping[str, Any], world: World) -> dict[str, Any]:
    """What a checkpoint says beside the tensors, as it is now; the generators are those of every process."""
    generators = world.gather(generator_states())
    return {
        "step": state.step,
        "fits": dict(fits),
        "seconds": state.seconds,
        "generators": generators[0],
        "generators_of_other_ranks": generators[1:],
        "data_position": deepcopy(state.data_position),
        "pending_row": deepcopy(state.pending_row),
    }


def make_empty(path: Path) -> None:
    remove_checkpoint(path)
    path.mkdir(parents=True)


def complete(
    temporary: Path,
    final: Path,
    *,
    parts: tuple[Metadata, Sequence[Written]],
    record: dict[str, Any],
    run_id: str,
    elsewhere: Collection[int] = (),
) -> tuple[int, str]:
    """Make the shards in `temporary` a checkpoint: index, record, name, manifest, in this order.

    `parts` are the index of all shards and what each process wrote, of which those `elsewhere` wrote to
    another machine's folder. Returns the bytes of all files and the manifest's SHA-256. Raises OSError.
    """
    index, written = parts
    write_index(temporary, index, written)
    write_json_atomically(temporary / STATE_NAME, record)
    sync_directory(temporary)
    here = [file for rank, own in enumerate(written) if rank not in elsewhere for file in own.files]
    others = [file for rank in elsewhere for file in written[rank].files]
    files = describe_files(temporary, known=here, elsewhere=others)
    remove_checkpoint(final)
    temporary.rename(final)
    sync_directory(final.parent)
    write_manifest(final, CheckpointManifest(record["step"], run_id, time.time(), files))
    return sum(file.size for file in files), sha256_of_file(final / MANIFEST_NAME)


def complete_beside(temporary: Path, final: Path, manifest: bytes) -> None:
    """Make the shards in `temporary` this machine's part of the checkpoint that `manifest` describes.

    The main machine completed the checkpoint in its own folder. Raises OSError.
    """
    sync_directory(temporary)
    remove_checkpoint(final)
    temporary.rename(final)
    sync_directory(final.parent)
    write_bytes_atomically(final / MANIFEST_NAME, manifest)


@contextmanager
def _single_process() -> Iterator[None]:
    """Without torch's warning that there is one process, which is what was asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def newest_good_checkpoint(
    directory: RunDirectory,
    reject: Callable[[int, str], None],
    digest_of: Callable[[Path], str] = sha256_of_file,
) -> Path | None:
    """The newest checkpoint that verifies, or None; `reject(step, reason)` hears of each passed over."""
    for step in reversed(directory.checkpoint_steps()):
        path = directory.checkpoint(step)
        try:
            verify_checkpoint(path, digest_of=digest_of)
            read_state(path)
            read_index(path)
        except CheckpointError as error:
            reject(step, str(error))
        else:
            return path
    return None


def read_state(path: Path) -> dict[str, Any]:
    """The trainer's own record in the checkpoint at `path`. Raises CheckpointError when it is unreadable."""
    try:
        value = read_json_object(path / STATE_NAME, links=False)
    except (OSError, DamagedFileError) as error:
        raise CheckpointError(str(error)) from None
    if not {"step", "fits", "generators"} <= value.keys() or not isinstance(value["fits"], dict):
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


def _restorable(path: Path, index: Metadata, state: TrainingState) -> dict[str, Tensors]:
    """The tensors of `state`; an exchange of gradients begins anew where it is another than the saved one."""
    tensors, saved = state.tensors(), tensors_in(index)
    for name, tensor in tensors.get("exchange", {}).items():
        entry = saved.get(f"exchange.{name}")
        if entry is None or entry.size != tensor.shape:
            _logger.warning("%s has no state of this exchange of gradients: it begins anew", path)
            del tensors["exchange"]
            break
    return tensors


def load_checkpoint(path: Path, state: TrainingState, world: World = ALONE) -> None:
    """Load the verified checkpoint at `path` into `state`, random generators included.

    It may have been written by another number of processes: every process reads the parts it needs. Raises
    CheckpointError when it cannot be read.
    """
    index = read_index(path)
    try:
        with _single_process(), peers_expected():
            load(
                _restorable(path, index, state),
                storage_reader=IndexedReader(path, index),
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
