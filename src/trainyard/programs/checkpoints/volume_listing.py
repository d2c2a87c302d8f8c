"""Read the list of files that `volume_agent` prints of a folder, in a pod or here: names, sizes, indexes.

Output of a pod is not trusted: names that lead out of the volume, and lines in another format, are refused.
"""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from trainyard.errors import DamagedFileError
from trainyard.programs.checkpoints import volume_agent
from trainyard.run.record_models import Count, Number, RelativePath, Text, Truth, validate_record


@dataclass(frozen=True)
class VolumeFile:
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
    """File that an index names -> the least bytes that it must have, if the index states them."""
    counts: Mapping[str, Count] = field(default_factory=dict)
    """Numbers in the file about ranks, steps and sizes, by the name that its writer uses."""
    keys: tuple[Text, ...] | None = None
    """The keys at the top of a torch.save file; None for files that were not opened for them."""


@dataclass(frozen=True)
class VolumeListing:
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
        return frozenset(str(parent) for file in self.files for parent in PurePosixPath(file.path).parents)

    def file(self, folder: str, name: str) -> VolumeFile | None:
        path = join_path(folder, name)
        return next((file for file in self.by_folder.get(folder, ()) if file.path == path), None)

    def below(self, folder: str) -> tuple[VolumeFile, ...]:
        if folder == ".":
            return self.files
        return tuple(file for file in self.files if file.path.startswith(f"{folder}/"))


def parse_listing(output: bytes) -> VolumeListing:
    """Return the files that the agent has listed. Raises DamagedFileError for any other output."""
    files, count = list[VolumeFile](), None
    try:
        for line in filter(None, output.split(b"\n")):
            given = json.loads(line)
            if "end" in given:
                count = given["end"]
            else:
                files.append(validate_record(VolumeFile, given))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedFileError(f"the list of files from the pod cannot be read: {error}") from None
    if count != len(files):
        raise DamagedFileError("the list of files from the pod is cut off")
    return VolumeListing(tuple(files))


def join_path(folder: str, name: str) -> str:
    return name if folder == "." else f"{folder}/{name}"


class FolderReader:
    """Lists files of this machine, and what torch.save and JSON files hold; an unchanged one is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, float], dict[str, Any]] = {}

    def list_beside(self, parent: Path, names: Collection[str]) -> VolumeListing:
        """Return the files directly in a folder, and those below its folders in `names`.

        The files in `names`, and those in these folders, are opened for their keys. A file that disappears
        meanwhile is left out.
        """
        files: list[VolumeFile] = []
        for path in sorted(parent.iterdir()) if parent.is_dir() else ():
            is_open = path.name in names
            with suppress(OSError):
                if is_open and path.is_dir() and not path.is_symlink():
                    below = volume_agent.entries_below(path)
                    files += [self._file(path / each["path"], parent, each, is_open=True) for each in below]
                elif (entry := volume_agent.entry_of(path)) is not None:
                    files.append(self._file(path, parent, entry, is_open=is_open))
        return VolumeListing(tuple(files))

    def _file(self, path: Path, parent: Path, entry: dict[str, Any], *, is_open: bool) -> VolumeFile:
        saved, key = dict[str, Any](), (str(path), entry["size"], entry["modified"])
        is_json = path.suffix == ".json" and entry["size"] <= volume_agent.MOST_TEXT
        if is_open and (is_json or (entry.get("whole") and path.suffix in volume_agent.ARCHIVES)):
            with suppress(OSError):
                saved = self._known.get(key) or self._known.setdefault(key, volume_agent.saved_facts(path))
        counts = {**entry.get("counts", {}), **saved.get("counts", {})}
        name = path.relative_to(parent).as_posix()
        return validate_record(VolumeFile, {**entry, **saved, "counts": counts, "path": name})
