"""Checkpoints in `checkpoints/step-NNNNNNNN/`: temporary name, fsync, rename, and the manifest last.

    .step-00000500.tmp/ --fsync, rename--> step-00000500/ --manifest.json--> a checkpoint

Reading starts from the manifest; a checkpoint that does not verify is never loaded. `shards` decides which
process writes which part, and `checkpoint_save` when. This module knows no store and no schedule.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from trainyard.errors import CheckpointError, DamagedFileError
from trainyard.run.atomic_files import (
    sha256_of_file,
    sync_directory,
    write_bytes_atomically,
    write_json_atomically,
)
from trainyard.run.checkpoint_manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    describe_files,
    verify_checkpoint,
    write_manifest,
)
from trainyard.run.checkpoint_retention import remove_checkpoint
from trainyard.run.directory import RunDirectory
from trainyard.run.untrusted_files import read_json_object
from trainyard.training.checkpoint.loss_record import LossRecord
from trainyard.training.checkpoint.shards import WrittenFiles, write_checkpoint_index
from trainyard.training.checkpoint.stored_index import load_tensors, read_checkpoint_index, tensors_in
from trainyard.training.checkpoint.training_state import (
    Tensors,
    TrainingState,
    generator_states,
    restore_generators,
)
from trainyard.training.runtime.world import ALONE, World, explain_lost_peers

STATE_NAME = "trainer_state.json"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedCheckpoint:
    """The result of a save."""

    path: Path
    size: int
    """Bytes on disk."""
    seconds: float
    """From the start of the save until the checkpoint was complete."""
    manifest_sha256: str
    """SHA-256 of the written manifest; it links a stored checkpoint to its run."""
    awaited_seconds: float
    """Seconds of work, without the pauses between the end of a phase and the step that starts the next."""


def trainer_record(state: TrainingState, fits: Mapping[str, Any], world: World) -> dict[str, Any]:
    """Return the present values of a checkpoint beside the tensors, with those of all processes."""
    generators, positions = zip(*world.gather((generator_states(), state.data_position)), strict=True)
    return {
        "step": state.step,
        "fits": dict(fits),
        "seconds": state.seconds,
        "generators": generators[0],
        "generators_of_other_ranks": generators[1:],
        "data_positions": [deepcopy(position) for position in positions if position is not None],
        "pending_row": deepcopy(state.pending_row),
        "schedule": state.schedule,
        "losses": asdict(state.losses),
    }


def make_empty(path: Path) -> None:
    remove_checkpoint(path)
    path.mkdir(parents=True)


def complete(
    temporary: Path,
    final: Path,
    *,
    index: Metadata,
    written: Sequence[WrittenFiles],
    record: dict[str, Any],
    run_id: str,
    elsewhere: Collection[int] = (),
) -> tuple[int, str]:
    """Make a checkpoint of the shards in `temporary`: write index and record, rename, write the manifest.

    `index` is that of all shards, `written` are the files that each process wrote; processes in `elsewhere`
    wrote to another machine's folder. Returns the bytes of all files and the manifest's SHA-256. Raises
    OSError.
    """
    write_checkpoint_index(temporary, index, written)
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


def newest_good_checkpoint(
    directory: RunDirectory,
    digest_of: Callable[[Path], str] = sha256_of_file,
    rejected: Callable[[int, str], None] | None = None,
) -> Path | None:
    """The newest checkpoint that verifies, or None; `rejected` gets step and reason of each that does not."""
    for step in reversed(directory.checkpoint_steps()):
        path = directory.checkpoint(step)
        try:
            verify_checkpoint(path, digest_of=digest_of)
            read_state(path)
            read_checkpoint_index(path)
        except CheckpointError as error:
            _logger.warning("checkpoint of step %d passed over: %s", step, error)
            if rejected is not None:
                rejected(step, str(error))
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


def _restorable_tensors(path: Path, index: Metadata, state: TrainingState) -> dict[str, Tensors]:
    """The tensors of `state`, without those of a gradient exchange whose saved state is of another kind."""
    tensors, saved = state.tensors(), tensors_in(index)
    for name, tensor in tensors.get("exchange", {}).items():
        entry = saved.get(f"exchange.{name}")
        if entry is None or entry.size != tensor.shape:
            _logger.warning("%s has no state of this gradient exchange, which starts with a new one", path)
            del tensors["exchange"]
            break
    return tensors


def load_checkpoint(path: Path, state: TrainingState, world: World = ALONE) -> None:
    """Load the verified checkpoint at `path` into `state`, including the random generators.

    The number of processes may differ from that of the save: every process reads the parts it needs. Raises
    CheckpointError when it cannot be read.
    """
    index = read_checkpoint_index(path)
    with explain_lost_peers():
        load_tensors(path, index, _restorable_tensors(path, index, state), group=world.control)
    record = read_state(path)
    generators = [record["generators"], *record["generators_of_other_ranks"]]
    restore_generators(generators[min(world.rank, len(generators) - 1)])
    state.step = int(record["step"])
    state.seconds = float(record["seconds"])
    state.restored_positions = record.get("data_positions", [])
    state.pending_row = record["pending_row"]
    state.schedule = record["schedule"]
    state.losses = LossRecord(**record["losses"])
