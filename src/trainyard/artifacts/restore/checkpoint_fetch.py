"""Fetch one checkpoint of a stored run into a temporary folder for inspection."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from trainyard.artifacts.restore.restore import restore
from trainyard.artifacts.restore.selection import Selection
from trainyard.artifacts.store.object_store import Store
from trainyard.run.checkpoint_manifest import missing_files, read_manifest
from trainyard.run.directory import RunDirectory
from trainyard.run.node_folder import keeps_parts
from trainyard.run.progress import UNSEEN, Progress


@contextmanager
def checkpoint_at_hand(
    path: Path, store: Store, run_number: int, step: int, *, progress: Progress = UNSEEN
) -> Iterator[Path]:
    """Yield the checkpoint at `path`, or a copy of the stored one if it is gone or only a part of it.

    Raises the errors of `restore`.
    """
    has_parts = path.exists() and keeps_parts(RunDirectory(path.parents[1]))
    if path.exists() and not (has_parts and missing_files(path, read_manifest(path))):
        yield path
        return
    with TemporaryDirectory(prefix="trainyard-") as folder:
        copy = RunDirectory(Path(folder, "run"))
        restore(store, Selection(run_number, step), copy.path, progress=progress)
        yield copy.checkpoint(step)
