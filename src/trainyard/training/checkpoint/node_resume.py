"""Resume and keep records where each machine has its own run directory (`checkpointing.shared: false`).

A save leaves each machine with its own part of a checkpoint. `trainyard step fetch-checkpoint` downloads the
rest from the store before the trainer starts; here the machines only compare what they have. `resume` chooses
the checkpoint on the main machine.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trainyard.config.load import dump_yaml
from trainyard.config.schema import Config
from trainyard.errors import CheckpointError
from trainyard.run.atomic_files import sha256_of_file, write_bytes_atomically
from trainyard.run.checkpoint_manifest import MANIFEST_NAME, verify_checkpoint
from trainyard.run.checkpoint_retention import complete_steps, remove_leftovers, set_aside_after
from trainyard.run.directory import RunDirectory
from trainyard.run.node_folder import NodeFolder, write_node
from trainyard.training.checkpoint.resume import ResumePoint, belongs_to
from trainyard.training.runtime.world import World

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
