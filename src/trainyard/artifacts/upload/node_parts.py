"""Store one machine's part of a run whose machines do not share a directory (`checkpointing.shared: false`).

    node.json → the run's number → per checkpoint: the files that are here → done

The main machine stores its own part and the records, waits for the parts of the others (`upload`),
and alone puts manifests. A part that no manifest lists does not count as stored.
"""

import threading
import time
from dataclasses import replace

from trainyard.artifacts.record.contents import Group, checkpoint_group
from trainyard.artifacts.record.run_numbers import stored_claim, stored_claim_of_number
from trainyard.artifacts.record.sync_report import SyncReport
from trainyard.artifacts.store.layout import run_prefix
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.run_following import Ending, FollowReport, Patience, Watch, follow
from trainyard.artifacts.upload.sync import send_groups, sync_suggested
from trainyard.artifacts.upload.upload import GroupUploader
from trainyard.errors import CheckpointError, ConfigError, NumberTakenError, VerificationError
from trainyard.run.atomic_files import sha256_of_file
from trainyard.run.checkpoint_manifest import MANIFEST_NAME, is_complete
from trainyard.run.directory import RunDirectory
from trainyard.run.node_folder import NodeFolder, node_file, read_node
from trainyard.run.progress import UNSEEN, Progress


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
    with sync_suggested(store, directory, wanted):
        return _Parts(store, directory, _node_of(directory), wanted).send_new(progress)


def follow_node(
    store: Store, directory: RunDirectory, wanted: int | None, *, stop: threading.Event, patience: Patience
) -> FollowReport:
    """Store this machine's part of each checkpoint as it appears, until the trainer ends or `stop` is set."""
    files = (node_file(directory), directory.checkpoints, directory.logs)
    watch = Watch(lambda: _node_of(directory).is_over, files, patience, stop)
    parts: _Parts | None = None

    def store_new(ending: Ending | None) -> FollowReport | None:
        nonlocal parts
        parts = parts or _Parts(store, directory, _node_of(directory), wanted)
        report = parts.send_new()
        return None if ending is None else FollowReport(ending, parts.stored, None, report.problems)

    return follow(watch, store_new)


def _node_of(directory: RunDirectory) -> NodeFolder:
    node = read_node(directory)
    if node is None:
        raise ConfigError(f"{node_file(directory)}: missing, so this is not the folder of a further machine")
    return node


class _Parts:
    """This machine's parts of one run, and the run's number in a store."""

    def __init__(self, store: Store, directory: RunDirectory, node: NodeFolder, wanted: int | None) -> None:
        """Raises VerificationError when the main machine has not claimed the number yet."""
        self._store, self._directory, self._node = store, directory, node
        claim = stored_claim(store, node.run_id) if wanted is None else stored_claim_of_number(store, wanted)
        if claim is None:
            raise VerificationError(
                f"{store.url} has no number of run {node.run_id} yet: the main machine claims it."
            )
        if claim.run_id != node.run_id:
            raise NumberTakenError(
                f"Run number {wanted} in {store.url} belongs to run {claim.run_id}; this is run {node.run_id}"
            )
        self._number = claim.number
        self._done: set[str] = set()
        """The SHA-256 of the manifest of each checkpoint whose part is stored."""
        self.stored = 0

    def send_new(self, progress: Progress = UNSEEN) -> SyncReport:
        """Store the parts that are new since the last call, the newest checkpoint first."""
        started, problems, notes = time.monotonic(), list[str](), list[str]()
        groups = self._new_groups(problems)
        listed = self._store.list_objects(run_prefix(self._number)) if groups else ()
        metadata = {"run-number": str(self._number), "run-id": self._node.run_id}
        progress.begin("sending to the store", sum(group.size for _, group in groups))
        there = {found.key: found for found in listed}
        with GroupUploader(
            self._store, known={}, there=there, metadata=metadata, progress=progress
        ) as sending:
            entries = send_groups(sending, [group for _, group in groups], problems=problems, notes=notes)
        done = {digest for digest, group in groups if all(item.key in entries for item in group.items)}
        self._done |= done
        self.stored += len(done)
        return SyncReport(
            store=self._store.url,
            run_id=self._node.run_id,
            run_number=self._number,
            manifest_key="",
            objects=len(entries),
            bytes=sum(entry.size for entry in entries.values()),
            seconds=round(time.monotonic() - started, 3),
            sent=len(sending.sent),
            skipped=len(entries) - len(sending.sent),
            problems=tuple(problems),
            notes=(f"part of machine {self._node.node} of {self._node.nodes}; the main machine lists it",),
        )

    def _new_groups(self, problems: list[str]) -> list[tuple[str, Group]]:
        found = []
        for step in reversed(self._directory.checkpoint_steps()):
            path, name = self._directory.checkpoint(step), f"the part of checkpoint-{step}"
            if not is_complete(path):
                continue
            try:
                digest = sha256_of_file(path / MANIFEST_NAME)
                group = checkpoint_group(path, self._number, step, is_part=True)
            except (CheckpointError, OSError) as error:
                if path.exists():
                    problems.append(f"{name} was not uploaded: {error}")
                continue
            if digest not in self._done:
                # The main machine stores the checkpoint's own manifest, which marks it as complete.
                here = tuple(
                    item for item in group.items if item.path.suffix == ".distcp" and not item.is_elsewhere
                )
                found.append((digest, replace(group, name=name, items=here, marker=None)))
        return found
