"""Store one machine's part of a run whose machines do not share a directory (`checkpointing.shared: false`).

    node.json → the run's number → per checkpoint: the files that are here → done

The main machine stores its own part and the records, waits for the parts of the others (`other_machines`),
and alone puts manifests. A part that no manifest lists does not count as stored.
"""

import logging
import threading
import time
from dataclasses import dataclass, replace

from trainyard.artifacts.record.contents import Group, checkpoint_group
from trainyard.artifacts.record.run_numbers import claim_number, number_of_run
from trainyard.artifacts.record.sync_report import SyncReport, size_text
from trainyard.artifacts.store.layout import run_prefix
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.run_following import Ending, FollowReport, Patience
from trainyard.artifacts.upload.sync import retry_suggested
from trainyard.artifacts.upload.upload import GroupUploader
from trainyard.errors import CheckpointError, ConfigError, RunConflictError, ServiceError, VerificationError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import MANIFEST_NAME
from trainyard.run.directory import RunDirectory
from trainyard.run.node_folder import NodeFolder, node_file, read_node
from trainyard.run.progress import UNSEEN, Progress
from trainyard.run.suggested_commands import sync_command

_SETTLE_SECONDS = 30.0
"""A run that has ended may be about to resume. It is over if no trainer starts within these seconds."""
_PAUSE_SECONDS = 10.0
"""Seconds between attempts while the store is down."""
_logger = logging.getLogger(__name__)


def is_further_machine(directory: RunDirectory) -> bool:
    """Return whether the directory holds the part of a machine that has no records of the run."""
    node = read_node(directory)
    return node is not None and not node.is_main


def sync_node(
    store: Store, directory: RunDirectory, wanted: int | None, *, progress: Progress = UNSEEN
) -> SyncReport:
    """Store the files of every complete checkpoint that this machine has; put no manifest.

    Raises RunConflictError when the number belongs to another run, ServiceError when the store gives up.
    """
    with retry_suggested(
        str(directory.path), sync_command(directory.path, store=store.url, run_number=wanted)
    ):
        return _Parts(store, directory, _node_of(directory), wanted).send_new(progress)


def follow_node(
    store: Store, directory: RunDirectory, wanted: int | None, *, stop: threading.Event, patience: Patience
) -> FollowReport:
    """Store this machine's part of each checkpoint as it appears, until the trainer ends or `stop` is set."""
    watch, parts = _Watch(directory, stop, patience), None
    away_since = 0.0
    while True:
        ending = watch.ending()
        try:
            parts = parts or _Parts(store, directory, _node_of(directory), wanted)
            report = parts.send_new()
            away_since = 0.0
            if ending is not None:
                return FollowReport(ending, parts.stored, None, report.problems)
            stop.wait(patience.poll_seconds)
        except (ServiceError, RunConflictError, VerificationError, OSError) as error:
            away_since = away_since or time.monotonic()
            if stop.is_set() or time.monotonic() - away_since > patience.outage_seconds:
                raise
            _logger.warning("%s\nTrying again in %.0f s.", error, _PAUSE_SECONDS)
            stop.wait(_PAUSE_SECONDS)


def _node_of(directory: RunDirectory) -> NodeFolder:
    node = read_node(directory)
    if node is None:
        raise ConfigError(f"{node_file(directory)}: missing, so this is not the folder of a further machine")
    return node


@dataclass
class _Watch:
    """Watches this machine's `node.json` and folders, and the request to stop."""

    directory: RunDirectory
    stop: threading.Event
    patience: Patience

    def __post_init__(self) -> None:
        self._was_going = False
        self._seen: tuple[float, ...] = ()
        self._changed = time.monotonic()

    def ending(self) -> Ending | None:
        """Return why to end now, None to continue."""
        seen = tuple(
            path.stat().st_mtime if path.exists() else 0.0
            for path in (node_file(self.directory), self.directory.checkpoints, self.directory.logs)
        )
        if seen != self._seen:
            self._seen, self._changed = seen, time.monotonic()
        quiet = time.monotonic() - self._changed
        if not _node_of(self.directory).is_over:
            self._was_going = True
            if self.stop.is_set():
                return Ending.STOPPED
            return Ending.SILENT if quiet > self.patience.silence_seconds else None
        is_settled = self._was_going or quiet >= _SETTLE_SECONDS or self.stop.is_set()
        return Ending.OUTCOME if is_settled else None


class _Parts:
    """This machine's parts of one run, and the run's number in a store."""

    def __init__(self, store: Store, directory: RunDirectory, node: NodeFolder, wanted: int | None) -> None:
        """Raises VerificationError when no number was given and the main machine has not claimed one yet."""
        self._store, self._directory, self._node = store, directory, node
        number = (
            number_of_run(store, node.run_id) if wanted is None else claim_number(store, node.run_id, wanted)
        )
        if number is None:
            raise VerificationError(
                f"{store.url} has no number of run {node.run_id} yet: the main machine claims it. Give "
                "--run-number, the same on every machine."
            )
        self._number = number
        self._done: set[str] = set()
        """The SHA-256 of the manifest of each checkpoint whose part is stored."""
        self.stored = 0

    def send_new(self, progress: Progress = UNSEEN) -> SyncReport:
        """Store the parts that are new since the last call, the newest checkpoint first."""
        started, problems = time.monotonic(), list[str]()
        groups = self._new_groups(problems)
        there = (
            {found.key: found for found in self._store.list_objects(run_prefix(self._number))}
            if groups
            else {}
        )
        metadata = {"run-number": str(self._number), "run-id": self._node.run_id}
        progress.begin("sending to the store", sum(group.size for _, group in groups))
        count = size = sent = 0
        with GroupUploader(
            self._store, known={}, there=there, metadata=metadata, progress=progress
        ) as sending:
            for digest, group in groups:
                try:
                    entries = sending.send(group)
                except (CheckpointError, VerificationError, OSError) as error:
                    if group.items and not group.items[0].path.parent.exists():
                        continue  # the run removed it, because it has newer checkpoints
                    problems.append(f"the part of {group.name} was not uploaded: {error}")
                    continue
                self._done.add(digest)
                self.stored += 1
                count, size = count + len(entries), size + sum(entry.size for entry in entries.values())
                _logger.info(
                    "%s, this machine's part: %d files, %s", group.name, len(entries), size_text(size)
                )
            sent = len(sending.sent)
        return SyncReport(
            store=self._store.url,
            run_id=self._node.run_id,
            run_number=self._number,
            manifest_key="",
            objects=count,
            bytes=size,
            seconds=round(time.monotonic() - started, 3),
            sent=sent,
            skipped=count - sent,
            problems=tuple(problems),
            notes=(f"part of machine {self._node.node} of {self._node.nodes}; the main machine lists it",),
        )

    def _new_groups(self, problems: list[str]) -> list[tuple[str, Group]]:
        found = []
        for step in reversed(self._directory.checkpoint_steps()):
            path = self._directory.checkpoint(step)
            if not (path / MANIFEST_NAME).exists():
                continue
            try:
                digest = sha256_of_file(path / MANIFEST_NAME)
                group = checkpoint_group(path, self._number, step, is_part=True)
            except (CheckpointError, OSError) as error:
                if path.exists():
                    problems.append(f"the part of checkpoint-{step} was not uploaded: {error}")
                continue
            if digest not in self._done:
                # The main machine stores the checkpoint's own manifest, which marks it as complete.
                here = tuple(
                    item for item in group.items if item.path.suffix == ".distcp" and not item.is_elsewhere
                )
                found.append((digest, replace(group, items=here, marker=None)))
        return found
