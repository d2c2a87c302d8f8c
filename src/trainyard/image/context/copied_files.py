"""Find the file of the build context that COPY, ADD or a mount puts at a path of the image.

It is unknown if it comes from another stage or image, or if another command may have changed it.
"""

import contextlib
import fnmatch
import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainyard.image.context.dockerfile import Dockerfile, Instruction
from trainyard.image.context.install_commands import Install, installs_of, other_words_of

_LOCK = re.compile(r"requirements-[\w-]+\.txt")
_OWN_INSTALLER = "requirements-uv.txt"
"""uv's own lock, which installs the others."""


@dataclass(frozen=True)
class _Copy:
    sources: tuple[str, ...]
    target: str
    """A path in the image."""
    stage: str
    """The stage or image that it copies from; empty is the build context."""


def locks_of(parsed: Dockerfile) -> tuple[str, ...]:
    """Return the names of the `requirements-*.txt` that a Dockerfile copies and installs from."""
    lines = parsed.instructions
    named = " ".join(line.filled for line in lines if line.name in ("COPY", "ADD")).split()
    found: dict[str, None] = {}
    for line in lines:
        installs = installs_of(line.filled) if line.name == "RUN" else ()
        for path in (path for install in installs for path in install.files):
            name = posixpath.basename(path)
            if _LOCK.fullmatch(name) and name in named and name != _OWN_INSTALLER:
                found[name] = None
    return tuple(found)


def unsent_sources(parsed: Dockerfile, names: Sequence[str]) -> tuple[str, ...]:
    """Return the paths that COPY and ADD take from the context and that none of the files `names` matches."""
    found: dict[str, None] = {}
    for line in parsed.instructions:
        if line.name not in ("COPY", "ADD"):
            continue
        for source in (one for copy in _copies(line) if not copy.stage for one in copy.sources):
            path = posixpath.normpath(source.lstrip("/") or ".")
            if path != "." and not any(_is_at(name, path) for name in names):
                found[path] = None
    return tuple(found)


def _is_at(name: str, path: str) -> bool:
    """Return whether a file matches a source, a path or pattern, or is in a folder that matches it."""
    parts = name.split("/")
    depth = path.count("/") + 1
    return len(parts) >= depth and all(map(fnmatch.fnmatchcase, parts, path.split("/")))


def context_paths(parsed: Dockerfile, place: int, install: Install, path: str) -> tuple[str, ...]:
    """Return the paths in the build context that a file of an install may have, the likeliest first.

    `place` is the index of its RUN. Empty if the file is of another stage or image, or may have changed.
    """
    lines = parsed.instructions
    folder = posixpath.join(lines[place].folder, install.folder) if lines[place].folder else ""
    full = posixpath.normpath(posixpath.join(folder, path))
    if "$" in full or not full.startswith("/") or any(mark in path for mark in ("://", "*")):
        return ()
    stages = {stage.number for stage in parsed.ancestors(lines[place].stage)}
    found: dict[str, None] = {}
    for number in range(place, -1, -1):
        line = lines[number]
        if line.stage not in stages:
            continue
        is_run, name = line.name == "RUN", posixpath.basename(full)
        if is_run and any(name in word for word in other_words_of(line.filled)):
            break  # this command may have changed it
        for copy in _copies(line) if not is_run or number == place else ():
            for source in _sources(copy, full):
                if copy.stage:
                    return tuple(found)
                found[posixpath.normpath(source.lstrip("/"))] = None
    return tuple(found)


def _sources(copy: _Copy, full: str) -> Iterator[str]:
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


def _copies(line: Instruction) -> Iterator[_Copy]:
    name, text = line.name, line.filled
    if name not in ("COPY", "ADD", "RUN") or (name != "RUN" and "<<" in text):
        return
    try:
        words = shlex.split(text)
    except ValueError:
        return
    flags = [word for word in words if word.startswith("--")]
    if name == "RUN":
        yield from (one for flag in flags if (one := _mount(flag, line.folder)) is not None)
        return
    if listed := re.search(r"\[.*\]\s*$", text):
        with contextlib.suppress(ValueError):  # a name with a bracket is no list
            words = [*flags, *map(str, json.loads(listed[0]))]
    paths = [word for word in words if not word.startswith("--")]
    origin = next((flag.partition("=")[2] for flag in flags if flag.startswith("--from=")), "")
    if len(paths) < 2 or any("://" in path or path.startswith("git@") for path in paths[:-1]):
        return
    if any("$" in path for path in paths) or "--parents" in flags or not line.folder:
        return
    yield _Copy(tuple(paths[:-1]), posixpath.normpath(posixpath.join(line.folder, paths[-1])), origin)


def _mount(flag: str, folder: str) -> _Copy | None:
    facts = dict(part.partition("=")[::2] for part in flag.removeprefix("--mount=").split(","))
    target = facts.get("target") or facts.get("dst") or facts.get("destination") or ""
    if not flag.startswith("--mount=") or facts.get("type", "bind") != "bind" or not target or not folder:
        return None
    source, place = facts.get("source") or facts.get("src") or ".", posixpath.join(folder, target)
    return _Copy((source,), posixpath.normpath(place), facts.get("from", ""))
