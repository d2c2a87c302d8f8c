"""Fetch one checkpoint of a stored run into a folder for inspection. The folder is not a run directory."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from trainyard.artifacts.record.chain import newest_manifest
from trainyard.artifacts.record.checkpoints import checkpoints_of
from trainyard.artifacts.record.local_paths import safe_place
from trainyard.artifacts.restore.download import Downloader
from trainyard.artifacts.store.object_store import Store
from trainyard.errors import VerificationError
from trainyard.run.checkpoint_manifest import missing_files, read_manifest
from trainyard.run.directory import RunDirectory
from trainyard.run.node_folder import keeps_parts
from trainyard.run.progress import UNSEEN, Progress


@contextmanager
def checkpoint_at_hand(
    path: Path, store: Store, run_number: int, step: int, *, progress: Progress = UNSEEN
) -> Iterator[Path]:
    """Yield the checkpoint at `path`, or a copy of the stored one if it is gone or only a part of it.

    Raises OSError without room for it, VerificationError when the checkpoint is not listed or the store has
    other bytes, ServiceError when the store gives up.
    """
    has_parts = path.exists() and keeps_parts(RunDirectory(path.parents[1]))
    if path.exists() and not (has_parts and missing_files(path, read_manifest(path))):
        yield path
        return
    manifest = newest_manifest(store, run_number)[1]
    stored = checkpoints_of(manifest) if manifest else []
    checkpoint = next((each for each in stored if each.step == step), None)
    if checkpoint is None:
        raise VerificationError(f"run {run_number} has no stored checkpoint of step {step}")
    names = {entry.key.removeprefix(checkpoint.prefix): entry for entry in checkpoint.objects}
    wanted = {safe_place(entry.key, name.split("/")): entry for name, entry in names.items()}
    with TemporaryDirectory(prefix="trainyard-") as folder:
        if checkpoint.size > shutil.disk_usage(folder).free:
            raise OSError(f"it is not on disk, and {Path(folder).parent} has no room for it")
        progress.begin(f"fetching checkpoint-{step}, which is not on disk", checkpoint.size)
        with Downloader(store, Path(folder), progress) as downloader:
            problems = downloader.download(wanted)
        if problems:
            raise VerificationError("\n".join(problems))
        yield Path(folder)
