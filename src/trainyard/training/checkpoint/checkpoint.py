"""Checkpoints in `checkpoints/step-NNNNNNNN/`: temporary name, fsync, rename, and the manifest last.

    staging ---> writing ---> completing ---> complete
    a copy       shards       index, record, rename, manifest (main process)

An engine (`writer_process`) does the work, at once or in the background. All processes start a phase
together, between the same two steps; they agree on it in `PendingSave`, on training's thread.

Reading starts from the manifest; a checkpoint that does not verify is never loaded. `shards` decides which
process writes which part. This module knows no store and no schedule.
"""

import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch.distributed.checkpoint.metadata import Metadata

from trainyard.errors import CheckpointError, TrainingFailedError
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
from trainyard.run.checkpoint_retention import complete_steps, remove_checkpoint
from trainyard.run.directory import RunDirectory
from trainyard.run.failure import Failure, FailureKind
from trainyard.training.checkpoint.failure_advice import build_error, not_finite_failure
from trainyard.training.checkpoint.shards import (
    NotFiniteError,
    Shares,
    WrittenFiles,
    bytes_of,
    live_tensors,
    side_stream,
    write_checkpoint_index,
)
from trainyard.training.checkpoint.stored_index import (
    STATE_NAME,
    load_tensors,
    read_checkpoint_index,
    read_state,
    tensors_in,
)
from trainyard.training.checkpoint.training_state import (
    LossRecord,
    Tensors,
    TrainingState,
    generator_states,
    restore_generators,
)
from trainyard.training.checkpoint.writer_process import Engine, PendingResult
from trainyard.training.runtime.world import ALONE, World, attempt, explain_lost_peers

if TYPE_CHECKING:
    from trainyard.training.run.run_context import RunContext

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
        "schedule": {"schedule_steps": state.schedule_steps},
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
    state.schedule_steps = record["schedule"]["schedule_steps"]
    known = asdict(LossRecord())
    state.losses = LossRecord(**{name: value for name, value in record["losses"].items() if name in known})


Result = TypeVar("Result")
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


class PendingSave:
    """The save of `state.step`; it replaces a broken or older checkpoint of that step.

    All processes call every method. If the checkpoint cannot be written, all raise CheckpointError; the
    temporary files are then removed, and existing checkpoints stay as they are.
    """

    def __init__(self, context: "RunContext", shares: Shares, engine: Engine) -> None:
        """Begin the save. Weights and moments must not change before `wait_until_staged`; all else may."""
        self._start = time.perf_counter()
        state = context.state
        self._context, self._shares, self._engine = context, shares, engine
        self.step = state.step
        self._final = context.directory.checkpoint(state.step)
        self._temporary = self._final.with_name(f".{self._final.name}.tmp")
        self._worked = 0.0
        """Seconds of work so far, without the time between two phases."""
        self._record = trainer_record(state, context.fits, context.world)
        stage = partial(engine.stage, shares.own, live_tensors(state.tensors()), side_stream())
        self._staging = self._start_timed(stage)
        self._writing: PendingResult[WrittenFiles] | None = None
        self._completing: PendingResult[tuple[int, str]] | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the save started."""
        return time.perf_counter() - self._start

    def wait_until_staged(self) -> None:
        """Wait until the state is copied, then start to write."""
        if self._writing is not None:
            return
        world = self._context.world
        with suppress(OSError):  # `_write` raises it again, on all processes
            self._staging.result()
        try:
            world.run_on_owners(lambda: make_empty(self._temporary))
        except OSError as error:
            raise self._failure(error) from error
        self._writing = writing = self._start_timed(self._write)
        if world.size == 1:  # it does not wait for the shards of others
            self._completing = self._complete(lambda: [writing.result()])

    def advance(self, *, wait: bool) -> SavedCheckpoint | None:
        """Start the next phase if all processes can, with `wait` up to the end; None until that is reached.

        Raises TrainingFailedError in all processes when a value that one of them should write is not finite.
        """
        if self._writing is None and not wait:
            return None
        self.wait_until_staged()
        assert self._writing is not None
        world = self._context.world
        try:
            if self._completing is None:
                if not wait and not world.all(self._writing.done()):
                    return None
                written = _agreed_files(world.gather(attempt(self._writing.result)))
                self._completing = self._complete(lambda: written)
            if not wait and not world.all(self._completing.done()):
                return None
            result = world.run_on_main(self._completing.result)
            self._complete_beside()
            return self._result(result)
        except (OSError, CheckpointError) as error:
            raise self._failure(error) from error

    def finish_alone(self) -> SavedCheckpoint | None:
        """Finish what this process can finish when the other processes can no longer take part."""
        world = self._context.world
        if world.size == 1:
            return self.advance(wait=True)
        if self._completing is None or not world.is_main or world.folder_count > 1:
            return None
        try:
            return self._result(self._completing.result())
        except (OSError, CheckpointError) as error:
            raise self._failure(error) from error

    def _start_timed(self, work: Callable[[], Result]) -> PendingResult[Result]:
        def run_timed() -> Result:
            start = time.perf_counter()
            try:
                return work()
            finally:
                self._worked += time.perf_counter() - start

        return self._engine.start(run_timed)

    def _write(self) -> WrittenFiles:
        self._staging.result()
        return self._engine.write(self._temporary)

    def _complete(self, written: Callable[[], list[WrittenFiles]]) -> PendingResult[tuple[int, str]]:
        if not self._context.world.is_main:
            return Engine().start(lambda: (0, ""))

        def work() -> tuple[int, str]:
            return self._engine.do(
                partial(
                    complete,
                    self._temporary,
                    self._final,
                    index=self._shares.index,
                    written=written(),
                    record=self._record,
                    run_id=self._context.run_id,
                    elsewhere=elsewhere,
                )
            )

        elsewhere = [rank for rank, folder in enumerate(self._context.world.folders) if folder]
        return self._start_timed(work)

    def _complete_beside(self) -> None:
        """Complete the folders of the other machines, if they have their own."""
        world = self._context.world
        if world.folder_count == 1:
            return
        manifest = world.run_on_main((self._final / MANIFEST_NAME).read_bytes)
        world.run_on_owners(
            lambda: None if world.is_main else complete_beside(self._temporary, self._final, manifest)
        )

    def _result(self, result: tuple[int, str]) -> SavedCheckpoint:
        size, manifest_sha256 = result
        return SavedCheckpoint(self._final, size, self.seconds, manifest_sha256, self._worked)

    def _failure(self, error: BaseException) -> CheckpointError | TrainingFailedError:
        """Remove the temporary files, and return the error to raise."""
        directory = self._context.directory
        if self._context.world.owns_folder:
            remove_checkpoint(self._temporary)
        if isinstance(error, NotFiniteError):
            what = f"Step {self.step}: {error} is not finite after the optimizer step; it is not saved."
            failure = not_finite_failure(self.step, self._context.config, directory)
            return build_error(TrainingFailedError, what, failure, directory)
        free = shutil.disk_usage(directory.path).free / 1e6
        needed = sum(map(bytes_of, self._shares.own.items)) / 1e6
        cause = (str(error).strip() or type(error).__name__).splitlines()[-1]
        fix = "Once that is fixed"
        if free < needed or any(sign in cause for sign in _FULL):
            room = f"{free:,.1f} MB free, a checkpoint needs {needed:,.1f} MB"
            cause = f"No space left on {directory.checkpoints} ({room})"
            fix = f"Free space in {directory.checkpoints}"
        complete_before = complete_steps(directory)
        kept = (
            f"step {complete_before[-1]} is complete" if complete_before else "there is no earlier checkpoint"
        )
        failure = Failure(FailureKind.STORAGE, self.step, fix)
        what = f"{cause}. Step {self.step} was not saved; {kept}."
        return build_error(CheckpointError, what, failure, directory)


def _agreed_files(answers: list[tuple[Exception | None, WrittenFiles | None]]) -> list[WrittenFiles]:
    """The files that all processes wrote. Raises the error of one that could not write.

    A value that is not finite comes first: it is the cause that ends the run.
    """
    if errors := [error for error, _ in answers if error is not None]:
        raise next((error for error in errors if isinstance(error, NotFiniteError)), errors[0])
    return [files for _, files in answers if files is not None]
