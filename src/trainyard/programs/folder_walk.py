"""Walk through the folders of a program, without those that cannot have files of its run."""

import os
from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path

from trainyard.run.directory import is_run_directory

_OF_OTHERS = frozenset(("__pycache__", "node_modules", "site-packages", "venv"))
_MANY_FOLDERS = 100
"""A folder with so many others in it is one of data, such as the classes of ImageNet; they come last."""


def walk_folders(
    directory: Path, ignored: Collection[Path], *, most_depth: int
) -> Iterator[tuple[list[Path], list[Path]]]:
    """Yield the files in each folder, and the folders in it that are searched, too; the nearest come first.

    Environments, directories of other runs, also those in a store, hidden folders and links are left out, and
    what is `ignored`.
    """
    skipped = {path.absolute() for path in ignored}
    waiting, last = deque([directory]), deque[Path]()
    while waiting or last:
        folder = (waiting or last).popleft()
        depth = len(folder.relative_to(directory).parts)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:  # removed meanwhile, or not readable
            continue
        if any(entry.name == "pyvenv.cfg" for entry in entries) or (depth and is_run_directory(folder)):
            continue
        files, folders = list[Path](), list[Path]()
        for entry in entries:
            path = folder / entry.name
            if path.absolute() in skipped:
                continue
            if not entry.is_dir(follow_symlinks=False):
                files.append(path)
            elif not entry.name.startswith(".") and entry.name not in _OF_OTHERS:
                folders.append(path)
        yield files, folders
        if depth < most_depth:
            (last if len(folders) > _MANY_FOLDERS else waiting).extend(folders)
