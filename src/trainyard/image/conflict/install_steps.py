"""The installing commands of a Dockerfile, each with the content of the files that it names.

It resolves nothing: a step states requirements, indexes, and what of it cannot be read.
"""

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from trainyard.image.conflict.base_images import BaseImage
from trainyard.image.conflict.stated_packages import (
    UNREAD,
    RequirementsFile,
    StatedRequirement,
    read_project,
    read_requirement,
    read_requirements,
)
from trainyard.image.context.copied_files import context_paths
from trainyard.image.context.dockerfile import Dockerfile, Instruction
from trainyard.image.context.install_commands import Install, installs_of
from trainyard.image.version_facts import fact

ContextReader = Callable[[tuple[str, ...]], tuple[str, str] | None]
"""Returns name and text of the first of these files that the build context has; None if it has none."""

_OTHER_INDEX = re.compile(r"\bpip3? config\b|\bpip\.conf\b|\buv\.toml\b")
"""Text of commands that may make pip and uv use another index."""


@dataclass(frozen=True)
class InstallStep:
    """One installing command, with the content of the files that it names."""

    install: Install
    stated: tuple[StatedRequirement, ...]
    """What its words and files require; in a condition only the names."""
    constraints: tuple[str, ...]
    indexes: tuple[str, ...]
    """The index that replaces PyPI, empty for none, then the others; of options, files and variables."""
    base: BaseImage
    line: int
    stage: int
    number: int
    is_last: bool
    """Whether the last stage is built on it."""
    is_locked: bool
    """Whether everything that it installs is of locks, which were resolved when they were made."""
    unread: str = ""
    """What installs packages that are not read: a file, a program, a URL, a condition; empty for nothing."""


def read_steps(
    parsed: Dockerfile, bases: Mapping[int, BaseImage], dockerfile: str, read: ContextReader
) -> tuple[InstallStep, ...]:
    """Return the installing commands of the stages in `bases`; `dockerfile` is the name of the file."""
    last = {stage.number for stage in parsed.ancestors(len(parsed.stages) - 1)}
    runs = (
        (line, install)
        for line in parsed.instructions
        if line.stage in bases and line.name == "RUN"
        for install in installs_of(line.filled)
    )
    steps = list[InstallStep]()
    for line, install in runs:
        find = partial(context_paths, parsed, line, install)
        files = _read_files(install, find, read)
        named = (read_requirement(word) for word in install.words)
        words = [replace(one, file=dockerfile, line=line.line) for one in named if one]
        stated = (*words, *(one for file in files for one in file.requirements))
        unread = [install.opaque, *(file.options.opaque for file in files)]
        unread += [] if all(one.name for one in words) else ["a URL"]
        if not install.certain:
            unread = ["a condition"]
            stated = tuple(replace(one, pin="", allowed=None, written="", wheel="") for one in stated)
        limits = [read_requirements(file[1]) for path in install.constraints if (file := read(find(path)))]
        steps.append(
            InstallStep(
                install,
                stated,
                tuple(one.written for limit in limits for one in limit.requirements),
                _indexes([install, *(file.options for file in files)], _index_variables(parsed, line)),
                bases[line.stage],
                line.line,
                line.stage,
                len(steps),
                is_last=line.stage in last,
                is_locked=bool(files) and not words and all(file.is_lock for file in files),
                unread=next(filter(None, unread), ""),
            )
        )
    return tuple(steps)


def _read_files(
    install: Install, find: Callable[[str], tuple[str, ...]], read: ContextReader
) -> list[RequirementsFile]:
    """Return the content of the files and projects of a command; one that cannot be read is opaque."""
    found = []
    for path in install.files:
        file = read(find(path))
        missing = f"{path} (the build context here has no such file, or a command changes it; see --context)"
        unknown = RequirementsFile(options=Install(opaque=missing))
        found.append(read_requirements(file[1], file[0]) if file else unknown)
    for folder, extras in install.projects:
        file = read(find(posixpath.join(folder, "pyproject.toml")))
        unknown = RequirementsFile(options=Install(opaque=UNREAD))
        found.append(read_project(file[1], file[0], extras) if file else unknown)
    return found


def _indexes(named: Sequence[Install], variables: Mapping[str, str]) -> tuple[str, ...]:
    main = [one.main_index for one in named if one.main_index]
    main += [variables[name] for name in fact("commands", "main_indexes") if variables.get(name)]
    others = [url for one in named for url in one.other_indexes]
    others += [url for name in fact("commands", "other_indexes") for url in variables.get(name, "").split()]
    return ((main or [""])[0], *others)


def _index_variables(parsed: Dockerfile, here: Instruction) -> dict[str, str]:
    """Return the variables that name indexes to pip and uv at an instruction; `$NAME` is an unknown one."""
    names = (*fact("commands", "main_indexes"), *fact("commands", "other_indexes"))
    found = {name: here.values[name] for name in names if here.values.get(name)}
    for line in (line for line in parsed.lineage(here.stage) if line.line <= here.line):
        declared = line.text.partition("=")[0].split() if line.name == "ARG" else ()
        found |= {name: f"${name}" for name in declared if name in names and not line.values.get(name)}
        if _OTHER_INDEX.search(line.filled):
            found["PIP_CONFIG_FILE"] = "$PIP_CONFIG_FILE"
    return found
