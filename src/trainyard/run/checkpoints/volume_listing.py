"""Read the list of a folder's files that the program in a pod prints: names, sizes, content of indexes.

Output of a pod is not trusted: names that lead out of the volume, and lines in another format, are refused.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from trainyard.errors import DamagedFileError


@dataclass(frozen=True)
class VolumeFile:
    """One file."""

    path: str
    """Relative to the folder that was listed, with forward slashes."""
    size: int
    """Bytes."""
    modified: float = 0.0
    """Unix seconds."""
    whole: bool | None = None
    """Whether its own format shows that its end is present; None if that cannot be told."""
    text: str | None = None
    """The text of trackers and manifests."""
    names: tuple[str, ...] | None = None
    """The files that an index names; None for other files, and for an unreadable index."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """File that an index names -> the bytes that it must have at least, if the index says so."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Numbers in the file that say how many ranks wrote the checkpoint, by the name that its writer uses."""


@dataclass(frozen=True)
class VolumeListing:
    """The files below a folder."""

    files: tuple[VolumeFile, ...]

    @cached_property
    def by_folder(self) -> Mapping[str, tuple[VolumeFile, ...]]:
        """Folder -> the files directly in it; the folder that was listed is `.`."""
        found: dict[str, list[VolumeFile]] = {}
        for file in self.files:
            found.setdefault(str(PurePosixPath(file.path).parent), []).append(file)
        return {folder: tuple(files) for folder, files in found.items()}

    @cached_property
    def folders(self) -> frozenset[str]:
        """All folders that hold a file, at any depth."""
        return frozenset(str(parent) for file in self.files for parent in PurePosixPath(file.path).parents)

    @cached_property
    def _by_path(self) -> Mapping[str, VolumeFile]:
        return {file.path: file for file in self.files}

    def file(self, folder: str, name: str) -> VolumeFile | None:
        """The file of this name in the folder."""
        return self._by_path.get(join_path(folder, name))

    def below(self, folder: str) -> tuple[VolumeFile, ...]:
        """All files below the folder, at any depth."""
        if folder == ".":
            return self.files
        return tuple(file for file in self.files if file.path.startswith(f"{folder}/"))


@dataclass
class ListingReader:
    """Takes the lines of the program in the pod, and returns the listing after the last one."""

    files: list[VolumeFile] = field(default_factory=list)
    ended: bool = False

    def take(self, line: bytes) -> None:
        """Take one line. Raises DamagedFileError for a line of another program."""
        try:
            given = json.loads(line)
            if "end" in given:
                self.ended = given["end"] == len(self.files)
            else:
                self.files.append(_file(given))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedFileError(f"the list of files from the pod cannot be read: {error}") from None

    def listing(self) -> VolumeListing:
        """The listing. Raises DamagedFileError if its last line did not arrive."""
        if not self.ended:
            raise DamagedFileError("the list of files from the pod is cut off")
        return VolumeListing(tuple(self.files))


def join_path(folder: str, name: str) -> str:
    """The path of a name in a folder of the listing."""
    return name if folder == "." else f"{folder}/{name}"


def _file(given: Mapping[str, Any]) -> VolumeFile:
    path = PurePosixPath(given["p"])
    if path.is_absolute() or ".." in path.parts or str(path) in (".", "") or "\0" in str(path):
        raise ValueError(f"{str(path)[:80]!r} is not a file of the volume")
    size, whole, names = given["s"], given.get("whole"), given.get("names")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ValueError(f"{str(size)[:40]!r} is not a size")
    if whole not in (True, False, None) or not isinstance(given.get("text"), str | None):
        raise ValueError("a field has a wrong type")
    return VolumeFile(
        path=str(path),
        size=size,
        modified=float(given["m"]),
        whole=whole,
        text=given.get("text"),
        names=None if names is None else tuple(str(name) for name in names),
        ends=_counts(given.get("ends", {})),
        counts=_counts(given.get("counts", {})),
    )


def _counts(given: Any) -> dict[str, int]:
    if not isinstance(given, dict) or any(type(value) is not int or value < 0 for value in given.values()):
        raise ValueError("a count has a wrong type")
    return given
