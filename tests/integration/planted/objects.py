"""The parts of a finished run: every file of its directory and every object of its store.

`Role` is the part of a file in the proof; the verdict on a damaged file follows from it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.integration.planted.yard import Yard


class Role(StrEnum):
    """The role of a file in the proof."""

    RECORD = "record"
    """run.json, config.yaml, metrics.jsonl and events.jsonl: they are judged."""
    CHECKPOINT = "checkpoint"
    LOG = "log"
    """Stored and compared, and not judged: a run whose logs were tidied away is proven."""
    OTHER = "other"
    """Neither judged nor stored: tensorboard/, report/, the lock."""
    CLAIM = "claim"
    """`identity.json`, of the store only."""
    EARLIER = "earlier record"
    """`records-N/`: the records as an earlier manifest of the run had them."""
    METRICS = "metrics document"
    MANIFEST = "manifest"


_RECORDS = ("run.json", "config.yaml", "metrics.jsonl", "events.jsonl")


@dataclass(frozen=True)
class Thing:
    """A file of the run's directory, or an object of its store."""

    place: str
    """`disk` or `store`."""
    name: str
    """Relative to the run directory or the store's folder, with forward slashes."""
    role: Role

    def path(self, yard: Yard) -> Path:
        return (yard.run.path if self.place == "disk" else yard.store_folder) / self.name


def things_of(yard: Yard) -> Iterator[Thing]:
    """Each file and each object."""
    for place, root, role_of in (
        ("disk", yard.run.path, _role_on_disk),
        ("store", yard.store_folder, _role_in_store),
    ):
        for path in sorted(root.rglob("*")):
            if path.is_file():
                name = path.relative_to(root).as_posix()
                yield Thing(place, name, role_of(name))


def _role_on_disk(name: str) -> Role:
    first = name.partition("/")[0]
    if name in _RECORDS:
        return Role.RECORD
    return {"checkpoints": Role.CHECKPOINT, "logs": Role.LOG}.get(first, Role.OTHER)


def _role_in_store(name: str) -> Role:
    first, _, rest = name.partition("/")
    if first == "manifests":
        return Role.MANIFEST
    if first == "metrics":
        return Role.METRICS
    if rest == "identity.json" or first == "ids":
        return Role.CLAIM
    if rest.startswith("records-"):
        return Role.EARLIER
    return {"checkpoint": Role.CHECKPOINT, "logs": Role.LOG}.get(rest.partition("-")[0], _log_or_record(rest))


def _log_or_record(rest: str) -> Role:
    return Role.LOG if rest.startswith("logs/") else Role.RECORD if rest in _RECORDS else Role.OTHER
