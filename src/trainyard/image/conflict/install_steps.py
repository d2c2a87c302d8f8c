"""The installing commands of a Dockerfile, each with the content of the files that it names.

It resolves nothing: a step states requirements, indexes, and what of it cannot be read.
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from trainyard.image.conflict.base_images import BaseImage, base_of_stage
from trainyard.image.conflict.stated_packages import (
    RequirementsFile,
    StatedRequirement,
    read_project,
    read_requirement,
    read_requirements,
)
from trainyard.image.context.copied_files import context_paths
from trainyard.image.context.dockerfile import Dockerfile, ResolvedInstruction, resolve_text
from trainyard.image.context.install_commands import Install, installs_of

ContextReader = Callable[[tuple[str, ...]], tuple[str, str] | None]
"""Returns name and text of the first of these files that the build context has; None if it has none."""
LockReader = Callable[[str, str, Sequence[str]], str]
"""Returns the pins of a uv.lock as requirements, from the project, the lock and extras; empty if it fails."""

_OTHER_INDEX = re.compile(r"\bpip3? config\b|\bpip\.conf\b|\buv\.toml\b")
"""Text of commands that may make pip and uv use another index."""
# Variables that name indexes to pip and uv.
_MAIN_INDEXES = ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
_OTHER_INDEXES = (
    *("PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX", "PIP_FIND_LINKS", "UV_FIND_LINKS"),
    *("UV_TORCH_BACKEND", "PIP_CONFIG_FILE"),
)


@dataclass(frozen=True)
class InstallStep:
    """One installing command, with the content of the files that it names."""

    install: Install
    files: tuple[tuple[str, RequirementsFile], ...]
    """Name and content of the files that could be read."""
    constraints: tuple[RequirementsFile, ...]
    indexes: Mapping[str, str]
    """Variables such as PIP_INDEX_URL that name indexes -> value."""
    base: BaseImage
    line: int
    stage: int
    number: int
    is_last: bool
    """Whether the last stage is built on it."""
    missing: tuple[str, ...] = ()
    """Files that cannot be read here."""
    unread: str = ""
    """What installs packages that are not read: a program, a script, a URL, a project; empty for nothing."""

    def requirements(self, dockerfile: str) -> Iterator[tuple[StatedRequirement, tuple[str, int]]]:
        """Yield what it installs, each with its file and line; `dockerfile` is the name of that file."""
        for word in self.install.words:
            if one := read_requirement(word):
                yield one, (dockerfile, self.line)
        for name, content in self.files:
            yield from ((one, (name, one.line)) for one in content.requirements)

    @property
    def index_urls(self) -> tuple[str, list[str]]:
        """The index that replaces PyPI, empty for none, and the others; of options, files and variables."""
        named = (self.install, *(content.indexes for _, content in self.files))
        main = [one.main_index for one in named if one.main_index]
        main += [self.indexes[name] for name in _MAIN_INDEXES if self.indexes.get(name)]
        others = [url for one in named for url in one.other_indexes]
        others += [url for name in _OTHER_INDEXES for url in self.indexes.get(name, "").split()]
        return (main or [""])[0], others


def read_steps(
    parsed: Dockerfile, read: ContextReader | None, read_lock: LockReader | None
) -> tuple[tuple[ResolvedInstruction, ...], dict[int, BaseImage], tuple[InstallStep, ...]]:
    """Return the instructions of the used stages, their bases, and the installing commands in order."""
    lines = resolve_text(parsed)
    bases = {stage.number: base_of_stage(parsed, stage, lines) for stage in parsed.used_stages()}
    last = {stage.number for stage in parsed.ancestors(len(parsed.stages) - 1)}
    steps = list[InstallStep]()
    for place, line in enumerate(lines):
        stage = line.instruction.stage
        if stage not in bases or line.instruction.name != "RUN":
            continue
        settings = _index_variables(lines[: place + 1], parsed)
        for install in installs_of(line.text):
            files = _FileReader(partial(context_paths, parsed, lines, place, install=install), read)
            contents = tuple(files.read_all(install, read_lock))
            limits = tuple(one[1] for path in install.constraints if (one := files.read_one(path)))
            unnamed = any(not stated.name for word in install.words if (stated := read_requirement(word)))
            unread = install.opaque or ("a URL" if unnamed else files.unread)
            place_of_step = (bases[stage], line.instruction.line, stage, len(steps), stage in last)
            steps.append(
                InstallStep(install, contents, limits, settings, *place_of_step, tuple(files.missing), unread)
            )
    return tuple(line for line in lines if line.instruction.stage in bases), bases, tuple(steps)


@dataclass
class _FileReader:
    """Reads the files that one installing command names, from the build context."""

    paths: Callable[..., tuple[str, ...]]
    read: ContextReader | None
    missing: list[str] = field(default_factory=list)
    unread: str = ""

    def read_all(
        self, install: Install, read_lock: LockReader | None
    ) -> Iterator[tuple[str, RequirementsFile]]:
        """Yield name and content of the files that can be read, and note the others."""
        found = [(path, self.read_one(path)) for path in install.files]
        for path in install.locks:
            folder, extras = install.projects[0]
            lock, project = self._text(path), self._text(posixpath.join(folder, "pyproject.toml"))
            pins = read_lock(project[1], lock[1], extras) if lock and project and read_lock else ""
            found.append((path, (lock[0], read_requirements(pins)) if lock and pins else None))
        self.missing = [path for path, one in found if one is None]
        for folder, extras in install.projects if not install.locks else ():
            project = self._text(posixpath.join(folder, "pyproject.toml"))
            found.append(("", (project[0], read_project(project[1], extras)) if project else None))
        if any(one[1].opaque if one else not path for path, one in found):
            self.unread = "a project or a file of requirements"
        yield from (one for _, one in found if one)

    def read_one(self, path: str) -> tuple[str, RequirementsFile] | None:
        found = self._text(path)
        return (found[0], read_requirements(found[1])) if found else None

    def _text(self, path: str) -> tuple[str, str] | None:
        paths = self.paths(path=path)
        return self.read(paths) if self.read and paths else None


def _index_variables(lines: tuple[ResolvedInstruction, ...], parsed: Dockerfile) -> dict[str, str]:
    """Return the variables that name indexes to pip and uv at the last line; `$` is an unknown index."""
    numbers = {one.number for one in parsed.ancestors(lines[-1].instruction.stage)}
    here = [line for line in lines if line.instruction.stage in numbers]
    names = (*_MAIN_INDEXES, *_OTHER_INDEXES)
    found = {name: here[-1].values[name] for name in names if here[-1].values.get(name)}
    for line in here:
        declared = line.instruction.name == "ARG" and line.instruction.text.partition("=")[0].split()
        found |= {name: "$" for name in declared or () if name in names and not line.values.get(name)}
        if _OTHER_INDEX.search(line.text):
            found["PIP_CONFIG_FILE"] = "$"
    return found
