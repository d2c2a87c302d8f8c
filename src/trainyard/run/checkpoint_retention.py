"""Choose which checkpoints of a run to keep, and remove the others, the marker first.

A crash at any moment leaves only complete checkpoints, and leftovers that are not mistaken for checkpoints.
"""

import shutil
from pathlib import Path

from trainyard.run.checkpoint_manifest import MANIFEST_NAME, is_complete
from trainyard.run.directory import RunDirectory


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint, its marker first, so that after a crash no partial one appears complete."""
    (path / MANIFEST_NAME).unlink(missing_ok=True)
    if path.exists():
        shutil.rmtree(path)


def complete_steps(directory: RunDirectory) -> list[int]:
    """Return the steps whose checkpoint has a manifest, oldest first. The files are not read."""
    return [s for s in directory.checkpoint_steps() if is_complete(directory.checkpoint(s))]


def remove_old_checkpoints(
    directory: RunDirectory, keep_last: int, *, newest: int, keep_every: int | None = None
) -> list[int]:
    """Remove old checkpoints up to step `newest` and return the removed steps.

    It keeps the last `keep_last` and every multiple of `keep_every`. Checkpoints after `newest`, which a
    resume has rejected as broken, do not count towards `keep_last`.
    """
    older = [step for step in complete_steps(directory) if step <= newest][:-keep_last]
    doomed = [step for step in older if keep_every is None or step % keep_every]
    for step in doomed:
        remove_checkpoint(directory.checkpoint(step))
    return doomed


def remove_leftovers(directory: RunDirectory) -> None:
    """Remove the leftovers of killed saves: temporary directories, and those without a manifest."""
    for path in directory.checkpoints.glob(".step-*.tmp"):
        remove_checkpoint(path)
    for step in set(directory.checkpoint_steps()) - set(complete_steps(directory)):
        remove_checkpoint(directory.checkpoint(step))


def set_aside_after(directory: RunDirectory, step: int) -> list[int]:
    """Move the checkpoints after `step` out of the run, and return their steps.

    They are broken, or belong to steps that are trained again. They are kept under hidden names, from which
    they are neither resumed nor stored.
    """
    later = [other for other in directory.checkpoint_steps() if other > step]
    for other in later:
        path = directory.checkpoint(other)
        aside = path.with_name(f".set-aside-{path.name}")
        remove_checkpoint(aside)
        path.rename(aside)
    return later
