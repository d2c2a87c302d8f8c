"""Find the file of the build context that COPY, ADD or a mount puts at a path of the image.

It is unknown if it comes from another stage or image, or if another command may have changed it.
"""

import fnmatch
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from trainyard.image.context.dockerfile import Copy, Dockerfile, Instruction, copies_of
from trainyard.image.context.install_commands import Install, installs_of, other_words_of

_LOCK = re.compile(r"requirements-[\w-]+\.txt")
_OWN_INSTALLER = "requirements-uv.txt"
"""uv's own lock, which installs the others."""


def locks_of(parsed: Dockerfile) -> tuple[str, ...]:
    """Return the names of the `requirements-*.txt` that a Dockerfile copies and installs from."""
    lines = parsed.instructions
    named = " ".join(line.filled for line in lines if line.name in ("COPY", "ADD")).split()
    installs = (one for line in lines if line.name == "RUN" for one in installs_of(line.filled))
    files = dict.fromkeys(posixpath.basename(path) for install in installs for path in install.files)
    return tuple(file for file in files if _LOCK.fullmatch(file) and file in named and file != _OWN_INSTALLER)


def unsent_sources(parsed: Dockerfile, names: Sequence[str]) -> tuple[str, ...]:
    """Return the paths that COPY and ADD take from the context and that none of the files `names` matches."""
    lines = (line for line in parsed.instructions if line.name in ("COPY", "ADD"))
    sources = (one for line in lines for copy in _copies(line) if not copy.origin for one in copy.sources)
    paths = dict.fromkeys(posixpath.normpath(source.lstrip("/") or ".") for source in sources)
    return tuple(path for path in paths if path != "." and not any(_is_at(name, path) for name in names))


def _is_at(name: str, path: str) -> bool:
    """Return whether a file matches a source, a path or pattern, or is in a folder that matches it."""
    parts = name.split("/")
    return len(parts) > path.count("/") and all(map(fnmatch.fnmatchcase, parts, path.split("/")))


def context_paths(parsed: Dockerfile, here: Instruction, install: Install, path: str) -> tuple[str, ...]:
    """Return the paths in the build context that a file of an install may have, the likeliest first.

    `here` is its RUN. Empty if the file is of another stage or image, or may have changed.
    """
    folder = posixpath.join(here.folder, install.folder) if here.folder else ""
    full = posixpath.normpath(posixpath.join(folder, path))
    if "$" in full or not full.startswith("/") or any(mark in path for mark in ("://", "*")):
        return ()
    found: dict[str, None] = {}
    for line in (line for line in reversed(parsed.lineage(here.stage)) if line.line <= here.line):
        is_run, name = line.name == "RUN", posixpath.basename(full)
        if is_run and any(name in word for word in other_words_of(line.filled)):
            break  # this command may have changed it
        for copy in _copies(line) if not is_run or line is here else ():
            for source in _sources(copy, full):
                if copy.origin:
                    return tuple(found)
                found[posixpath.normpath(source.lstrip("/"))] = None
    return tuple(found)


def _sources(copy: Copy, full: str) -> Iterator[str]:
    """The paths that may become `full`, if the source is a file or if it is a folder."""
    target = copy.target.rstrip("/") or "/"
    for source in copy.sources:
        name = posixpath.basename(source.rstrip("/"))
        if full == target and len(copy.sources) == 1 and "*" not in source:
            yield source
        if posixpath.dirname(full) == target and name and fnmatch.fnmatchcase(posixpath.basename(full), name):
            yield posixpath.join(posixpath.dirname(source), posixpath.basename(full))
        if full.startswith(target.rstrip("/") + "/") and "*" not in source:
            yield posixpath.join(source, full[len(target.rstrip("/")) + 1 :])


def _copies(line: Instruction) -> Iterator[Copy]:
    """Yield the files that an instruction copies or mounts, with their target as a path of the image."""
    for copy in copies_of(line.name, line.filled):
        paths = (*copy.sources, copy.target)
        is_known = copy.sources and copy.target and line.folder and not any("$" in path for path in paths)
        is_remote = any("://" in path or path.startswith("git@") for path in copy.sources)
        if is_known and not is_remote:
            yield replace(copy, target=posixpath.normpath(posixpath.join(line.folder, copy.target)))
