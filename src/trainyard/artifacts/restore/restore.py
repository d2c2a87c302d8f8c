"""Restore a complete run, one checkpoint with the run's records, or the newest checkpoint that verifies.

    manifest → .DIR.restoring/: records, each checkpoint, its own manifest last → fsync → rename to DIR

Every file is hashed as it arrives. DIR appears complete at the end or not at all. Files from an interrupted
attempt stay under the temporary name, and the next attempt continues from there. The store is only read.
"""

import fcntl
import logging
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.record.chain import newest_manifest
from trainyard.artifacts.record.checkpoints import Checkpoint, is_loose, missing_records, own_manifest_problem
from trainyard.artifacts.record.local_paths import places_of, records_of
from trainyard.artifacts.record.manifest import ManifestObject, RunManifest
from trainyard.artifacts.record.signature import require_signed
from trainyard.artifacts.restore.download import Downloader, require_distinct
from trainyard.artifacts.restore.selection import Selection, select_checkpoints
from trainyard.artifacts.store.object_store import Store
from trainyard.errors import ConfigError, ServiceError, TrainyardError, VerificationError
from trainyard.run.atomic_files import bytes_on_disk, sync_directory
from trainyard.run.checkpoint_manifest import missing_files, read_manifest
from trainyard.run.directory import RunDirectory
from trainyard.run.node_folder import keeps_parts
from trainyard.run.progress import UNSEEN, Progress
from trainyard.run.sizes import format_size
from trainyard.run.suggested_commands import resume_command

if TYPE_CHECKING:
    from trainyard.gateways.model_signing import KeyVerifier

_Places = dict[PurePosixPath, ManifestObject]
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RestorePlan:
    """The plan of a restore."""

    store: str
    run_id: str
    run_number: int
    directory: str
    steps: tuple[int, ...]
    """Steps of the checkpoints."""
    files: int
    bytes: int
    """Size of all files, fetched now or by an earlier attempt."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """Text for people."""
        steps, size = ", ".join(str(step) for step in self.steps) or "none", format_size(self.bytes)
        return (
            f"run {self.run_number} ({self.run_id}) of {self.store} → {self.directory}\n"
            f"checkpoints of steps {steps}; {self.files} files, {size}; nothing was changed"
        )


@dataclass(frozen=True)
class RestoreReport(RestorePlan):
    """The result of a restore."""

    fetched_bytes: int
    """Bytes read from the store now."""
    kept: int
    """Number of files that an earlier attempt had completed."""
    seconds: float
    passed_over: tuple[str, ...]
    """Why newer checkpoints were skipped; only when the newest that verifies was requested."""
    go_on: str
    """The command that resumes training; empty without a checkpoint of the trainer."""
    has_records: bool = True
    """False for a checkpoint and its metrics that were stored without a run directory."""
    is_open: bool = False
    """The run was still going when it was stored, so its last records are missing."""

    def summary(self) -> str:
        """One line for people."""
        kept = f", {self.kept} of them already there" if self.kept else ""
        size = f"{self.files} files, {format_size(self.bytes)}"
        less = "" if self.has_records else "; only a checkpoint: no record of its run is stored"
        less += "; stored while the run was still going" if self.is_open else ""
        what = f"{size}{kept}, digests equal, {self.seconds:.1f} s"
        return f"run {self.run_number} → {self.directory}: {what}{less}"


def plan_restore(
    store: Store, selection: Selection, target: Path, *, verifier: "KeyVerifier | None" = None
) -> RestorePlan:
    """Plan a restore. For the newest that verifies, the plan has the newest. Only manifests are read."""
    manifest = _manifest(store, selection.run_number, verifier)
    candidates = select_checkpoints(manifest, selection)
    return _plan(store, manifest, candidates[:1] if selection.newest else candidates, target)


def _plan(store: Store, manifest: RunManifest, wanted: list[Checkpoint], target: Path) -> RestorePlan:
    places = _places(manifest, wanted)
    return RestorePlan(
        store=store.url,
        run_id=manifest.run_id,
        run_number=manifest.run_number,
        directory=str(target),
        steps=tuple(sorted(each.step for each in wanted if each.step is not None)),
        files=len(places),
        bytes=sum(entry.size for entry in places.values()),
    )


def restore(
    store: Store,
    selection: Selection,
    target: Path,
    *,
    verifier: "KeyVerifier | None" = None,
    progress: Progress = UNSEEN,
) -> RestoreReport:
    """Restore the stored run into `target`, which must not exist or must be empty.

    With a `verifier`, the run's manifest must have a signature that it accepts, before anything is fetched.
    Raises VerificationError naming each object that does not match the manifest, ServiceError when the store
    gives up, ConfigError when the directory is in use, TrainyardError when the disk is full. In these cases
    `target` does not appear, and the files that arrived are kept for the next attempt.
    """
    started, target = time.monotonic(), Path(os.path.abspath(target))  # noqa: PTH100 - links stay names
    _require_free(target)
    work = target.with_name(f".{target.name}.restoring")
    with _lock_directory(work), _suggest_retry(work), Downloader(store, work, progress) as downloader:
        progress.begin("reading the manifests")
        manifest = _manifest(store, selection.run_number, verifier)
        candidates = select_checkpoints(manifest, selection)
        _keep_only(work, _places(manifest, candidates))
        # Of the newest that verifies, room is needed for one.
        places = _places(manifest, candidates[:1] if selection.newest else candidates)
        _require_room(work, places)
        progress.begin("fetching from the store", sum(entry.size for entry in places.values()))
        wanted, passed_over = _download_selection(
            store, manifest, candidates, downloader, newest=selection.newest
        )
        progress.begin("syncing the disk")
        places = _places(manifest, wanted)
        require_distinct(work, places)
        _keep_only(work, places)
        for folder, _, _ in os.walk(work):
            sync_directory(Path(folder))
        work.rename(target)
        sync_directory(target.parent)
    plan = _plan(store, manifest, wanted, target)
    is_trainers = plan.steps and RunDirectory(target).config_file.is_file()
    return RestoreReport(
        **vars(plan),
        fetched_bytes=downloader.fetched_bytes,
        kept=downloader.kept,
        seconds=round(time.monotonic() - started, 3),
        passed_over=tuple(passed_over),
        go_on=resume_command(target) if is_trainers else "",
        has_records=not is_loose(manifest),
        is_open=manifest.is_open,
    )


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


def _download_selection(
    store: Store, manifest: RunManifest, candidates: list[Checkpoint], downloader: Downloader, *, newest: bool
) -> tuple[list[Checkpoint], list[str]]:
    """Return the downloaded checkpoints, and why others were skipped. Raises VerificationError."""
    number = manifest.run_number
    problems = downloader.download(places_of(records_of(manifest), number))
    wanted, passed_over = [], []
    for checkpoint in [] if problems else candidates:
        wrong = _download_checkpoint(store, checkpoint, downloader)
        if not wrong:
            _logger.info(
                "%s: %d files, %s", checkpoint.name, len(checkpoint.objects), format_size(checkpoint.size)
            )
            wanted.append(checkpoint)
        elif newest:
            passed_over += wrong
            _logger.warning("%s passed over: %s", checkpoint.name, wrong[0])
        else:
            problems += wrong
        if newest and wanted:
            break
    if newest and not wanted and not problems:
        problems = passed_over or [f"run-{number}: the manifest lists no checkpoint with a step"]
    if problems:
        raise VerificationError("\n".join(problems))
    return wanted, passed_over


def _download_checkpoint(store: Store, checkpoint: Checkpoint, downloader: Downloader) -> list[str]:
    """Download a checkpoint. Its own manifest is checked first and written last, to mark it as complete."""
    if (problem := own_manifest_problem(store, checkpoint)) is not None:
        return [problem]
    places, marker = places_of(checkpoint.objects, checkpoint.run_number), checkpoint.marker
    last = {place: entry for place, entry in places.items() if entry == marker}
    files = {place: entry for place, entry in places.items() if entry != marker}
    return downloader.download(files) or downloader.download(last)


def _manifest(store: Store, run_number: int, verifier: "KeyVerifier | None") -> RunManifest:
    key, manifest, problems = newest_manifest(store, run_number)
    problems += missing_records(manifest) if manifest else []
    if manifest is None or problems:
        raise VerificationError("\n".join(problems))
    if verifier is not None:
        require_signed(store, key, manifest, verifier=verifier)
    return manifest


def _places(manifest: RunManifest, checkpoints: list[Checkpoint]) -> _Places:
    """Return the paths of the records and of these checkpoints."""
    objects = [entry for checkpoint in checkpoints for entry in checkpoint.objects]
    return places_of([*records_of(manifest), *objects], manifest.run_number)


def _require_free(target: Path) -> None:
    if not target.name or target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ConfigError(f"--to {target}: is not a name for a new directory. Choose another one.")
    if target.is_dir() and any(target.iterdir()):
        raise ConfigError(
            f"--to {target}: is not empty, and nothing in it is replaced. Choose another directory."
        )


def _require_room(work: Path, places: _Places) -> None:
    missing = sum(max(0, entry.size - bytes_on_disk(work / place)) for place, entry in places.items())
    if missing > (free := shutil.disk_usage(work).free):
        raise TrainyardError(
            f"No space left on {work.parent} ({format_size(free)} free, {format_size(missing)} needed). "
            "Nothing was fetched. Free space there, or choose another --to."
        )


@contextmanager
def _lock_directory(work: Path) -> Iterator[None]:
    """Create and lock the temporary directory; remove it again if it stays empty."""
    try:
        work.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise ConfigError(f"--to: {work} cannot be created ({error.strerror}). Choose another one.") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ConfigError(f"{work}: another restore is writing to it. Wait until it has ended.") from None
    finally:
        os.close(descriptor)
        if work.is_dir() and not any(work.iterdir()):
            work.rmdir()


@contextmanager
def _suggest_retry(work: Path) -> Iterator[None]:
    """Add the place of the fetched files to an error of the store or the disk."""
    kept = (
        f"Nothing is under the final name. What was fetched is kept in {work}: run the same command again "
        "to continue."
    )
    try:
        yield
    except (ServiceError, VerificationError) as error:
        raise type(error)(f"{error}\n{kept}") from error
    except OSError as error:
        free = format_size(shutil.disk_usage(work).free)
        text = f"{error.filename or work}: {error.strerror} ({free} free there).\n{kept}"
        raise TrainyardError(text) from error


def _keep_only(work: Path, places: Mapping[PurePosixPath, ManifestObject]) -> None:
    """Remove all links, and files that are not in the plan, such as those of another selection."""
    wanted = {f"{work}/{place}" for place in places}
    for folder, folders, files in os.walk(work, topdown=False):
        for file in (f"{folder}/{name}" for name in files):
            if file not in wanted or not stat.S_ISREG(os.lstat(file).st_mode):
                os.unlink(file)  # noqa: PTH108 - of thousands of files, paths take longer than the system
        for path in (Path(folder, name) for name in folders):
            if path.is_symlink():
                path.unlink()
            elif not any(path.iterdir()):
                path.rmdir()
