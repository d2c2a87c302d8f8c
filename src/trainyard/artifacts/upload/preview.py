"""Preview what a sync would send, without changing or hashing anything: for `--dry-run`."""

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainyard.artifacts.record.checkpoints import is_pruned
from trainyard.artifacts.record.contents import Contents, contents_of
from trainyard.artifacts.record.run_numbers import next_free_number, number_of_run, owner_of
from trainyard.artifacts.store.object_store import Store
from trainyard.artifacts.upload.manifest_publication import StoredState, read_store
from trainyard.errors import ExitCode, RunConflictError
from trainyard.run.directory import RunDirectory
from trainyard.run.identity import read_run
from trainyard.run.sizes import format_size


@dataclass(frozen=True)
class Preview:
    """The plan of a sync."""

    store: str
    run_number: int
    send: tuple[str, ...]
    """Keys that would be sent."""
    bytes: int
    """Size of the objects to send."""
    there: tuple[str, ...]
    """Keys that the store has; a sync would compare them."""
    problems: tuple[str, ...]

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.NO if self.problems else ExitCode.DONE

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """Return text for people: one line per object, then the sum."""
        lines = [f"send     {key}" for key in self.send] + [f"compare  {key}" for key in self.there]
        total = f"{len(self.send)} files to send to {self.store}/run-{self.run_number}"
        return "\n".join((*lines, *self.problems, f"{total}, {format_size(self.bytes)}; nothing was changed"))


def preview_run(store: Store, directory: RunDirectory, wanted: int | None) -> Preview:
    """Plan the sync of `directory`. Raises RunConflictError when the number belongs to another run."""
    number = number_for(store, str(read_run(directory.run_file)["run_id"]), wanted)
    with tempfile.TemporaryDirectory(prefix="trainyard-") as scratch:
        return preview_contents(store, contents_of(directory, number, Path(scratch)), number)


def number_for(store: Store, run_id: str, wanted: int | None) -> int:
    """Return the number that a sync would claim for `run_id`.

    Raises RunConflictError when the number belongs to another run.
    """
    number = wanted or number_of_run(store, run_id) or next_free_number(store)
    owner = owner_of(store, number)
    if owner not in (None, run_id):
        raise RunConflictError(
            f"Run number {number} in {store.url} belongs to run {owner}; this is {run_id}. "
            "Give a free one, or --run-number auto."
        )
    return number


def preview_contents(store: Store, contents: Contents, number: int) -> Preview:
    """Plan the sync of `contents`, whose files must still be there, as run `number`."""
    is_claimed = owner_of(store, number) is not None
    before = read_store(store, number) if is_claimed else StoredState([], {}, {})
    groups = [group for group in contents.groups if not is_pruned(group, before.newest)]
    items = [item for group in groups for item in group.all_items if not item.is_elsewhere]
    sizes = {item.key: item.path.stat().st_size for item in items}
    there = tuple(
        key for key, size in sizes.items() if key in before.there and before.there[key].size == size
    )
    send = tuple(key for key in sizes if key not in there)
    return Preview(store.url, number, send, sum(sizes[key] for key in send), there, contents.problems)
