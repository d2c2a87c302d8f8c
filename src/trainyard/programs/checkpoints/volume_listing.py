"""Read the list of files that `volume_agent` prints of a folder, in a pod or here: names, sizes, indexes.

Output of a pod is not trusted: names that lead out of the volume, and lines in another format, are refused.
"""

import io
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from trainyard.errors import DamagedFileError
from trainyard.programs.checkpoints import volume_agent
from trainyard.run.record_models import Count, Number, RelativePath, Text, Truth, validate_record


@dataclass(frozen=True)
class VolumeFile:
    """One file."""

    path: RelativePath
    """Relative to the folder that was listed, with forward slashes."""
    size: Count
    """Bytes."""
    modified: Number = 0.0
    """Unix seconds."""
    whole: Truth | None = None
    """Whether its own format shows that its end is present; None if that cannot be told."""
    text: Text | None = None
    """The text of trackers and manifests."""
    names: tuple[Text, ...] | None = None
    """The files that an index names; None for other files, and for an unreadable index."""
    ends: Mapping[str, Count] = field(default_factory=dict)
    """File that an index names -> the bytes that it must have at least, if the index says so."""
    counts: Mapping[str, Count] = field(default_factory=dict)
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
                names = {"path": given["p"], "size": given["s"], "modified": given["m"]}
                self.files.append(validate_record(VolumeFile, {**given, **names}))
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


def list_checkpoint_folder(folder: Path) -> VolumeListing:
    """Return the files below a folder of this machine, listed as in a pod.

    Links are left out, and a folder that does not exist has no files.
    """
    lines, reader = io.BytesIO(), ListingReader()
    volume_agent.list_below(folder, lines, most=sys.maxsize)
    for line in lines.getvalue().splitlines():
        reader.take(line)
    return reader.listing()
