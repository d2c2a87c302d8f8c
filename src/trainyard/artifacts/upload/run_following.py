"""Follow a run while it is trained: store each checkpoint soon after it is complete, and the rest at the end.

    wait for run.json → claim the number → poll and store new checkpoints → outcome: one pass over everything

It waits until an outage of the store ends. The trainer does not know that it is followed. `sync` does the
last pass.
"""

import contextlib
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.artifacts.record.checkpoints import is_pruned
from trainyard.artifacts.record.contents import RECORDS, Group, contents_of
from trainyard.artifacts.record.manifest import StoredManifest
from trainyard.artifacts.record.run_numbers import claim_of_run
from trainyard.artifacts.record.sync_report import SyncReport
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.manifest_publication import StoredState, read_store
from trainyard.artifacts.upload.sync import store_contents, sync_run, sync_suggested
from trainyard.artifacts.upload.upload import OtherMachines
from trainyard.errors import (
    AttemptEndedError,
    ExitCode,
    NumberTakenError,
    RecordError,
    RunConflictError,
    ServiceError,
    StoppedError,
    VerificationError,
    WaitTimeoutError,
)
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import MANIFEST_NAME
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.node_folder import keeps_parts, node_file

if TYPE_CHECKING:
    from trainyard.gateways.model_signing import ModelSigner

_SETTLE_SECONDS = 30.0
"""A run that already has an outcome may be about to resume. It is over if nothing changes that long."""
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
"""Seconds between attempts while the store is down: the first pause, and the longest."""
# Fewer files at once than after the run, because the trainer needs the processors.
_FILES_AT_ONCE = 2
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """Time limits for waiting."""

    silence_seconds: float = 1800.0
    """How long a run without an outcome may write nothing, not even its first record."""
    outage_seconds: float = 1800.0
    """How long a store that was reachable may be unreachable, or a disk may be full."""
    poll_seconds: float = 5.0
    """Seconds between two checks of the run directory."""
    others_seconds: float | None = None
    """Seconds that the last pass waits for parts of other machines; None for the default of `sync_run`."""


class Ending(StrEnum):
    """Reason why following ended."""

    OUTCOME = "outcome"
    """The run is over, and a last pass has stored everything."""
    STOPPED = "stopped"
    """A stop was requested; the complete checkpoints are stored."""
    SILENT = "silent"
    """The run wrote nothing for too long, so it was probably killed. Its checkpoints are stored."""


# Reason -> the exit code, and the reason in words.
_ENDINGS = {
    Ending.OUTCOME: (ExitCode.DONE, "the run is over"),
    Ending.STOPPED: (ExitCode.STOPPED, "a stop was requested"),
    Ending.SILENT: (ExitCode.TIMED_OUT, "the run stopped writing without an outcome"),
}


@dataclass(frozen=True)
class FollowReport:
    """The result of following."""

    ending: Ending
    checkpoints: int
    """Number of checkpoints stored while the run was going."""
    last: SyncReport | None
    """Report of the last pass, if the run is over."""
    problems: tuple[str, ...]
    """Checkpoints that could not be stored, and why."""

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.NO if self.problems else _ENDINGS[self.ending][0]

    @property
    def outputs(self) -> dict[str, str]:
        """Outputs for later steps of a workflow; empty before the last manifest."""
        return self.last.outputs if self.last else {}

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "exit_code": int(self.exit_code)}

    def summary(self) -> str:
        """One line for people."""
        stored = f"{self.checkpoints} checkpoint{'' if self.checkpoints == 1 else 's'}"
        if self.last is not None:
            return f"{self.last.summary()}; {stored} while it was trained"
        return f"{stored} stored while it was trained; {_ENDINGS[self.ending][1]}"


def wait_for_run(directory: RunDirectory, patience: Patience, stop: threading.Event) -> None:
    """Wait until the directory holds a run, or a part of one whose machines do not share it.

    Raises WaitTimeoutError when it holds none for too long, StoppedError when `stop` is set before.
    """
    deadline = time.monotonic() + patience.silence_seconds
    while not _holds_run(directory):
        nothing = f"{directory.run_file}: no trainer has written it, so there is nothing to follow"
        if stop.wait(min(patience.poll_seconds, 1.0)) and not _holds_run(directory):
            raise StoppedError(f"{nothing}; a stop was requested")
        if time.monotonic() > deadline:
            raise WaitTimeoutError(nothing)


def _holds_run(directory: RunDirectory) -> bool:
    if node_file(directory).is_file():
        return True
    if not directory.run_file.is_file():
        return False
    # Of several machines, records that came from the store do not name the machine that this will be.
    if not keeps_parts(directory):
        return True
    hardware = read_run(directory.run_file).get("hardware")
    hardware = hardware if isinstance(hardware, dict) else {}
    return bool(hardware.get("world_size") == hardware.get("local_world_size", 0))


def follow_run(
    store: Store,
    directory: RunDirectory,
    wanted: int | None,
    *,
    stop: threading.Event,
    patience: Patience = Patience(),
    signer: "ModelSigner | None" = None,
    stores_rest: bool = True,
) -> FollowReport:
    """Store the checkpoints of `directory` as they appear, until the run is over or `stop` is set.

    Without `stores_rest` somebody else stores what is left then: the records, and the last checkpoints.

    Raises ServiceError when the store refuses at once or stays unreachable for too long, RunConflictError
    when the number belongs to another run.
    """
    with sync_suggested(store, directory, wanted):
        number = claim_of_run(store, read_run(directory.run_file), wanted).number
    files = (directory.run_file, directory.metrics_file, directory.events_file, directory.checkpoints)
    watch = Watch(lambda: "outcome" in read_run(directory.run_file), files, patience, stop)
    with sync_suggested(store, directory, number):
        handover, others_seconds = None if stores_rest else stop, patience.others_seconds
        run = RunningRun(
            store, directory, number, signer=signer, others_seconds=others_seconds, handover=handover
        )
        return follow(watch, run.store_new)


class Watch:
    """Watches the files of a run from outside, and the request to stop."""

    def __init__(
        self, is_over: Callable[[], bool], files: Sequence[Path], patience: Patience, stop: threading.Event
    ) -> None:
        self._is_over, self._files, self.patience, self.stop = is_over, files, patience, stop
        self._was_going = False
        self._seen: tuple[int | None, ...] = ()
        self._changed = time.monotonic()

    def ending(self) -> Ending | None:
        """Return why to end now, None to continue."""
        seen = tuple(map(_modification_time, self._files))
        if seen != self._seen:
            self._seen, self._changed = seen, time.monotonic()
        quiet = time.monotonic() - self._changed
        if not self._is_over():
            self._was_going = True
            if self.stop.is_set():
                return Ending.STOPPED
            return Ending.SILENT if quiet > self.patience.silence_seconds else None
        is_settled = self._was_going or quiet >= _SETTLE_SECONDS or self.stop.is_set()
        return Ending.OUTCOME if is_settled else None


def follow(watch: Watch, store_new: Callable[[Ending | None], FollowReport | None]) -> FollowReport:
    """Call `store_new` with the reason to end, None for none yet, until it returns a report.

    It is called again after an outage of the store that is not longer than the patience allows.
    """
    away_since, pause = 0.0, _FIRST_PAUSE
    while True:
        ending = watch.ending()
        try:
            if (report := store_new(ending)) is not None:
                return report
            away_since, pause = 0.0, _FIRST_PAUSE
            watch.stop.wait(watch.patience.poll_seconds)
        except (NumberTakenError, AttemptEndedError):
            raise
        except (ServiceError, RunConflictError, VerificationError, RecordError, OSError) as error:
            away_since = away_since or time.monotonic()
            if watch.stop.is_set() or time.monotonic() - away_since > watch.patience.outage_seconds:
                raise
            _logger.warning("%s\nTrying again in %.0f s.", error, pause)
            watch.stop.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _modification_time(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return None


class RunningRun:
    """A run that is being trained, and its number in a store.

    Its checkpoints are stored one at a time, each listed by a further manifest. A checkpoint is identified by
    its own manifest: if the store's newest manifest lists the same digests, it is not read again. Each one is
    stored with the records, under keys that no later sync replaces, so that the store can be verified and
    restored at any moment.
    """

    def __init__(
        self,
        store: Store,
        directory: RunDirectory,
        number: int,
        *,
        signer: "ModelSigner | None" = None,
        others_seconds: float | None = None,
        handover: threading.Event | None = None,
    ) -> None:
        """`handover`: set when somebody else stores what is left; None: this does."""
        self._store, self._directory, self._number, self._signer = store, directory, number, signer
        self._others, self._others_seconds = OtherMachines(store), others_seconds
        self._handover = handover
        self.waits = False
        """Whether a checkpoint is omitted because another machine has not stored its part yet."""
        self._chain: tuple[StoredManifest, ...] = ()
        """The manifests read so far; they never change, so each is read once."""
        self._done: frozenset[tuple[int, int | None]] = frozenset()
        self._damaged: dict[str, str] = {}
        """Why a checkpoint could not be stored, by its name."""
        self._stored = 0

    def store_new(self, ending: Ending | None) -> FollowReport | None:
        """Store what is new, and all of a run that is over; return the report if there is a reason to end."""
        if ending is Ending.OUTCOME and self._handover is not None:
            return FollowReport(ending, self._stored, None, ())
        if ending is Ending.OUTCOME:
            last = sync_run(
                self._store,
                self._directory,
                self._number,
                signer=self._signer,
                others_seconds=self._others_seconds,
            )
            return FollowReport(ending, self._stored, last, last.problems)
        self._store_checkpoints()
        if ending is None:
            return None
        problems = tuple(self._damaged.values()) if self._handover is None else ()
        return FollowReport(ending, self._stored, None, problems)

    def _store_checkpoints(self) -> None:
        """Store every new complete checkpoint, newest first, because older ones may be removed meanwhile."""
        steps = self._directory.checkpoint_steps()
        markers = {
            step: _modification_time(self._directory.checkpoint(step) / MANIFEST_NAME) for step in steps
        }
        complete = frozenset((step, written) for step, written in markers.items() if written is not None)
        if complete <= self._done:
            return
        while (report := self.store_newest(frozenset(self._damaged))) is not None:
            if report.problems:
                self._damaged |= {line.partition(" ")[0]: line for line in report.problems}
            elif not report.notes:
                self._stored += 1
                _logger.info("checkpoint stored while training: %s", report.summary())
            if self._handover is not None and self._handover.is_set():
                return
        if not self.waits:
            self._done = complete

    def store_newest(self, passed_over: frozenset[str] = frozenset()) -> SyncReport | None:
        """Store the newest complete checkpoint that is not stored yet; return None if there is none.

        Checkpoints named in `passed_over` (`checkpoint-500`) are ignored.
        """
        with tempfile.TemporaryDirectory(prefix="trainyard-") as scratch:
            before = read_store(self._store, self._number, self._chain)
            self._chain = tuple(before.chain)
            contents = contents_of(self._directory, self._number, Path(scratch), version=before.version)
            new = [
                group
                for group in contents.checkpoints
                if group.name not in passed_over and not _is_stored(group, before)
            ]
            complete = [group for group in new if self._others.missing(group, before.known) is None]
            self.waits = len(complete) < len(new)
            if not complete:
                return None
            # When a run that ended resumes, a manifest of a run that is still going comes first: without it,
            # verify would report the new objects as extra.
            ended = bool(before.chain) and not before.chain[-1].manifest.is_open
            records = tuple(group for group in contents.groups if group.name == RECORDS)
            groups = records if ended else (complete[0], *records)
            report = store_contents(
                self._store,
                replace(contents, groups=groups, problems=(), notes=()),  # the last pass reports them, once
                self._number,
                before=before,
                signer=self._signer,
                files_at_once=_FILES_AT_ONCE,
                others=self._others,
                others_seconds=0.0,
            )
            return self.store_newest(passed_over) if ended else report


def _is_stored(group: Group, before: StoredState) -> bool:
    """Return whether every file of the checkpoint is listed with its digest and stored, by size and ETag."""
    if is_pruned(group, before.newest):
        return True  # retention removed it, and it must not be stored again
    for item in group.all_items:
        known, there = before.known.get(item.key), before.there.get(item.key)
        if known is None or there is None or there.size != known.size:
            return False
        if known.etag and known.etag != there.etag:
            return False
        if item.claimed is not None and known.sha256 != item.claimed.sha256:
            return False
    try:
        return group.marker is None or before.known[group.marker.key].sha256 == sha256_of_file(
            group.marker.path
        )
    except OSError:
        return True  # the run removed it meanwhile, but it is stored
