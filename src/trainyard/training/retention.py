"""Which checkpoints of a run stay, and how those that do not are removed: the marker first.

A crash at any moment leaves whole checkpoints and leftovers that nobody takes for one.
"""

import shutil
from pathlib import Path

from trainyard.run.checkpoints import MANIFEST_NAME
from trainyard.run.directory import RunDirectory


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint, its marker first: a crash in between leaves no half one that looks whole."""
    (path / MANIFEST_NAME).unlink(missing_ok=True)
    if path.exists():
        shutil.rmtree(path)


def whole_steps(directory: RunDirectory) -> list[int]:
    """Steps whose checkpoint has a manifest, oldest first; their bytes are not read."""
    return [s for s in directory.checkpoint_steps() if (directory.checkpoint(s) / MANIFEST_NAME).is_file()]


def remove_old_checkpoints(
    directory: RunDirectory, keep_last: int, *, newest: int, keep_every: int | None = None
) -> list[int]:
    """Remove all checkpoints up to step `newest` but those kept; returns the steps removed.

    Kept are the last `keep_last` and every multiple of `keep_every`. Later ones, which a resume has passed
    over as broken, do not count as kept.
    """
    older = [step for step in whole_steps(directory) if step <= newest][:-keep_last]
    doomed = [step for step in older if keep_every is None or step % keep_every]
    for step in doomed:
        remove_checkpoint(directory.checkpoint(step))
    return doomed


def remove_leftovers(directory: RunDirectory) -> None:
    """Clear what killed saves left: temporary names, and directories that never got their manifest."""
    for path in directory.checkpoints.glob(".step-*.tmp"):
        remove_checkpoint(path)
    for step in set(directory.checkpoint_steps()) - set(whole_steps(directory)):
        remove_checkpoint(directory.checkpoint(step))


def set_aside_after(directory: RunDirectory, step: int) -> list[int]:
    """Take the checkpoints after `step` out of the run: broken ones, or those of an abandoned future.

    They are kept under hidden names, neither resumed from nor stored any more. Returns their steps.
    """
    later = [other for other in directory.checkpoint_steps() if other > step]
    for other in later:
        path = directory.checkpoint(other)
        aside = path.with_name(f".set-aside-{path.name}")
        remove_checkpoint(aside)
        path.rename(aside)
    return later
