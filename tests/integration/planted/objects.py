"""The parts of a finished run: files of its directory and objects of its store; and ways to damage one."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.integration.planted.yard import Yard


class Role(StrEnum):
    """The role of a file in the proof; the verdict on a damaged file follows from it."""

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


# Copies of a yard are hard links, so each way replaces the file, and the bytes of the good one stay.
Damage = Callable[[Path], None]


def missing(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    _replace(path, path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    _replace(path, b"")


def one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    _replace(path, bytes(content))


def same_size(path: Path) -> None:
    _replace(path, b"0" * path.stat().st_size)


def longer(path: Path) -> None:
    _replace(path, path.read_bytes() + b"\n")


def older(path: Path) -> None:
    """Remove the last line: records grow, so the rest is an older state."""
    lines = path.read_bytes().splitlines(keepends=True)
    _replace(path, b"".join(lines[:-1]) if len(lines) > 1 else b"older")


def not_utf8(path: Path) -> None:
    content = path.read_bytes()
    middle = len(content) // 2
    _replace(path, content[:middle] + b"\xff\xfe\xed\xa0\x80" + content[middle:])


def linked(path: Path) -> None:
    """A symbolic link to the same bytes elsewhere: today they are equal."""
    elsewhere = _outside(path)
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def linked_to_other(path: Path) -> None:
    elsewhere = _outside(path)
    elsewhere.write_bytes(path.read_bytes() + b" ")
    path.unlink()
    path.symlink_to(elsewhere)


def linked_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nonexistent/file")


def linked_in_a_circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    """/dev/zero, which never ends."""
    path.unlink()
    os.mknod(path, 0o666 | 0o020000, os.makedev(1, 5))


# Damages of an object: a bucket has no links, pipes and folders.
IN_A_BUCKET: tuple[Damage, ...] = (missing, cut, emptied, one_bit, same_size, longer, older, not_utf8)
DAMAGES: tuple[Damage, ...] = (
    *IN_A_BUCKET,
    *(linked, linked_to_other, linked_nowhere, linked_in_a_circle, folder, pipe),
    *((device,) if os.geteuid() == 0 else ()),
)


def _replace(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def _outside(path: Path) -> Path:
    """A name beside the run and the store, which is part of neither."""
    top = next(parent for parent in path.parents if (parent / "run").is_dir() or (parent / "store").is_dir())
    (top / "outside").mkdir(exist_ok=True)
    return top / "outside" / path.name
