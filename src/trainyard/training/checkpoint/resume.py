"""Choose the checkpoint to resume from (none, the newest good one, or a named one), or refuse to resume.

Where each machine has its own run directory (`checkpointing.shared: false`), a save leaves each with its own
part of a checkpoint. `trainyard step fetch-checkpoint` downloads the rest before the trainer starts; here the
machines only compare what they have.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trainyard.config.load import dump_yaml
from trainyard.config.schema import Config
from trainyard.errors import CheckpointError, ConfigError, IncompatibleCheckpointError
from trainyard.run.atomic_files import sha256_of_file, write_bytes_atomically
from trainyard.run.checkpoint_manifest import MANIFEST_NAME, is_complete, verify_checkpoint
from trainyard.run.checkpoint_retention import complete_steps, remove_leftovers, set_aside_after
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.node_folder import NodeFolder, write_node
from trainyard.run.records import append_event
from trainyard.run.run_advice import checkpoint_advice, checkpoint_meant
from trainyard.training.checkpoint.checkpoint import newest_good_checkpoint
from trainyard.training.checkpoint.stored_index import (
    ResumePoint,
    belongs_to,
    read_checkpoint_index,
    read_state,
)
from trainyard.training.runtime.world import World


def find_resume_point(
    directory: RunDirectory, resume: str, fits: Mapping[str, Any], *, record: bool = True
) -> ResumePoint | None:
    """Find the checkpoint for `resume` (`none`, `auto` or a checkpoint's directory); None starts at step 0.

    With `record`, events are written for the checkpoints that `auto` rejects; nothing else is written. Raises
    ConfigError when the directory already holds a run and resuming would mix another one into it,
    CheckpointError when the named checkpoint does not verify, IncompatibleCheckpointError when the checkpoint
    does not fit the configuration.
    """
    if resume == "none":
        _require_unused(directory, "--resume none")
        return None
    newest = partial(_newest_checkpoint, directory, record=record)
    path = newest() or _parent_of(directory) if resume == "auto" else _checkpoint_at(Path(resume))
    if resume != "auto" and not belongs_to(directory, path):
        path = _checkpoint_of_other_run(directory, path, newest)
    if path is None:
        return None
    check_fit(path, fits)
    return ResumePoint(path, int(read_state(path)["step"]), sha256_of_file(path / MANIFEST_NAME))


def _checkpoint_of_other_run(
    directory: RunDirectory, path: Path | None, newest: Callable[[], Path | None]
) -> Path | None:
    """Start a new run from another run's checkpoint. When the command is repeated, resume that new run."""
    if path is not None and directory.run_file.exists():
        parent = read_run(directory.run_file).get("parent", {})
        if parent.get("manifest_sha256") == sha256_of_file(path / MANIFEST_NAME):
            return newest() or path
    _require_unused(directory, f"--resume {path}")
    return path


def _parent_of(directory: RunDirectory) -> Path | None:
    """The other run's checkpoint that the run started from, if any, which must be unchanged."""
    parent = read_run(directory.run_file).get("parent", {}) if directory.run_file.exists() else {}
    if not parent:
        return None
    path = _checkpoint_at(Path(str(parent.get("checkpoint"))))
    if parent.get("manifest_sha256") != sha256_of_file(path / MANIFEST_NAME):
        raise CheckpointError(
            f"{directory.path} was started from {path}, which has been replaced since. Nothing was loaded; "
            "start a new run with another --run-dir and --resume CHECKPOINT."
        )
    return path


def _require_unused(directory: RunDirectory, option: str) -> None:
    if directory.run_file.exists() or directory.checkpoint_steps():
        raise ConfigError(
            f"{directory.path} holds a run already, and {option} would mix a second one into it.\n"
            "Resume it with --resume auto, or choose another --run-dir. Nothing was started."
        )


def _newest_checkpoint(directory: RunDirectory, *, record: bool) -> Path | None:
    def record_rejection(step: int, reason: str) -> None:
        append_event(directory.events_file, "checkpoint_rejected", step=step, reason=reason)

    return newest_good_checkpoint(directory, rejected=record_rejection if record else None)


def _checkpoint_at(path: Path) -> Path:
    if not path.is_dir():
        exists = path.exists()
        what = "is a file, not a checkpoint's directory" if exists else "there is no such directory"
        raise ConfigError(f"--resume {path}: {what}; {checkpoint_advice(path)}. Nothing was started.")
    if not is_complete(path) and (meant := checkpoint_meant(path)):
        raise ConfigError(f"--resume {path}: is not a checkpoint; {meant}. Nothing was started.")
    try:
        verify_checkpoint(path)
        read_checkpoint_index(path)
    except CheckpointError as error:
        raise CheckpointError(
            f"--resume {path}: does not verify ({error}). Nothing was loaded; --resume auto takes the newest "
            "checkpoint that does."
        ) from error
    return path


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
            "To resume, set these values back. Or start a new run with another --run-dir and --resume none. "
            "Nothing was started."
        )


def values_to_fit(config: Config, fingerprint: str, samples_per_step: int) -> dict[str, Any]:
    """The values that must be equal to resume: the model's shape, the data and its order.

    The source of a stream does not count, because its fingerprint covers the content.
    """
    data, stream = config.data, config.data.hugging_face
    return {
        **{f"model.architecture.{k}": v for k, v in config.model.architecture.model_dump().items()},
        "data fingerprint": fingerprint,
        "data.sequence_length": data.sequence_length,
        "global batch (batch_size × gradient_accumulation_steps × processes)": samples_per_step,
        "training.seed": config.training.seed,
        **({} if data.packing == "concatenate" else {"data.packing": data.packing}),
        **({"data.hugging_face.shuffled_sequences": stream.shuffled_sequences} if stream.dataset else {}),
    }


_FETCH = (
    "Each machine keeps only its own part of a checkpoint (checkpointing.shared is false). Run "
    "trainyard step fetch-checkpoint on every machine first: it downloads the newest complete checkpoint "
    "(docs/multi_node.md). Nothing was started."
)


def agreed_resume_point(
    find: Callable[[], ResumePoint | None], directory: RunDirectory, world: World
) -> ResumePoint | None:
    """Return what `find` finds on the main process, as a path of this machine, which must have all of it.

    Raises CheckpointError on all processes when a machine lacks a part of it, or has a newer checkpoint,
    whose steps would be trained again.
    """
    point = world.run_on_main(find)
    if world.folder_count == 1:
        return point
    inside = point is not None and world.run_on_main(lambda: belongs_to(directory, point.path))
    own = replace(point, path=directory.checkpoint(point.step)) if point and inside else point
    world.run_on_owners(lambda: _require_nothing_newer(directory, point if inside else None))
    if own is not None:
        path, digest = own.path, own.manifest_sha256
        world.run_on_owners(lambda: None if world.is_main else _require_complete(path, digest))
    return own


def continue_node(directory: RunDirectory, run_id: str, step: int, *, config: Config, world: World) -> None:
    """Set the folder of this machine back to `step`; only the main machine has the records of the run."""
    if not world.is_main:
        directory.create()
        write_bytes_atomically(directory.config_file, dump_yaml(config).encode())
        remove_leftovers(directory)
        set_aside_after(directory, step)
    write_node(directory, NodeFolder(run_id, world.folder, world.folder_count))


def _require_nothing_newer(directory: RunDirectory, point: ResumePoint | None) -> None:
    newest = max(complete_steps(directory), default=0)
    if newest > (point.step if point else 0):
        complete = f"the newest complete one is of step {point.step}" if point else "none is complete"
        raise CheckpointError(f"{directory.checkpoint(newest)} lacks parts; {complete}.\n{_FETCH}")


def _require_complete(path: Path, manifest_sha256: str) -> None:
    try:
        verify_checkpoint(path)
        same = sha256_of_file(path / MANIFEST_NAME) == manifest_sha256
    except (CheckpointError, OSError) as error:
        raise CheckpointError(f"{path} is not complete on this machine ({error}).\n{_FETCH}") from None
    if not same:
        raise CheckpointError(f"{path} differs from the checkpoint of the main machine.\n{_FETCH}")
