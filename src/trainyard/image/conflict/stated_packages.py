"""Packages as requirements, in files and in words of commands, state them.

A package is stated by a pin on the command line, or by a pin in a file that is copied and installed from.
Everything else that is installed is unknown: a range, a URL, a variable without a value, a
project, a conditional install.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from trainyard.image.conflict.version_facts import Version, version
from trainyard.image.context.install_commands import Install, installs_of

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*(.*)", re.DOTALL)
_WHEEL = re.compile(r"([A-Za-z0-9][\w.]*)-\d[^/]*\.whl")
_LINUX = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "os_name": "posix",
    "platform_machine": "x86_64",
}
_PYTHONS = tuple(f"3.{number}" for number in range(8, 16))


@dataclass(frozen=True)
class Package:
    """A package that is pinned to one version."""

    name: str
    text: str
    """The version as written."""
    file: str
    line: int
    """The line; 0 if it does not matter."""
    stage: int
    """The stage that installs it."""
    index: str = ""
    """The index that gives `text` its suffix, such as cu124; empty if `text` was written with its suffix."""

    @property
    def version(self) -> Version:
        return version(self.text)

    @property
    def cuda(self) -> Version:
        """The CUDA release of a local version such as +cu124; empty without one."""
        match = re.search(r"\+cu(\d{2})(\d)", self.text)
        return (int(match[1]), int(match[2])) if match else ()


@dataclass(frozen=True)
class StatedRequirement:
    """A requirement as a command or a file states it."""

    name: str
    """Canonical; empty if it may be any package."""
    pin: str
    """Empty if it is not pinned to one version."""
    allowed: SpecifierSet | None
    """None if it is not known which versions it allows."""
    line: int = 0
    written: str = ""
    """As written, for a resolver; empty if it has a URL or no resolver can read it."""
    wheel: str = ""
    """The file name, if the requirement is the path or URL of a wheel."""


@dataclass(frozen=True)
class RequirementsFile:
    """The content of a file of requirements."""

    requirements: tuple[StatedRequirement, ...] = ()
    indexes: Install = field(default_factory=Install)
    """The indexes that it names, as a command without packages."""
    opaque: bool = False
    """Whether it also names packages that cannot be read here."""


def locked_packages(text: str, environment: Mapping[str, str] | None = None) -> dict[str, tuple[str, int]]:
    """Return name -> version and line, for all pins of a lock or requirements file that apply on Linux.

    `environment` has marker variables. Without a Python in it, a pin whose marker holds for some Pythons only
    is left out, and so is a package with two versions.
    """
    return pins_of(read_requirements(text, environment).requirements)


def pins_of(requirements: Iterable[StatedRequirement]) -> dict[str, tuple[str, int]]:
    """Return name -> version and line of the packages that are pinned to one version."""
    found: dict[str, tuple[str, int]] = {}
    ambiguous = set()
    for one in requirements:
        if not one.pin or found.get(one.name, (one.pin, 0))[0] != one.pin:
            ambiguous |= {one.name}
        else:
            found[one.name] = (one.pin, one.line)
    return {name: pin for name, pin in found.items() if name not in ambiguous}


def read_requirements(text: str, environment: Mapping[str, str] | None = None) -> RequirementsFile:
    """Return the content of a file of requirements, as it applies on Linux."""
    found: list[StatedRequirement] = []
    options = ""
    opaque = False
    lines = text.splitlines()
    place = 0
    while place < len(lines):
        start = place + 1
        line = lines[place]
        while line.rstrip().endswith("\\") and place + 1 < len(lines):
            place += 1
            line = f"{line.rstrip()[:-1]} {lines[place]}"
        place += 1
        line = re.sub(r"(?:^|\s)#.*", "", line)
        line = re.sub(r"\s--(?:hash|config-settings|global-option)[= ]\S+", "", line).strip()
        if line.startswith("-"):
            options += f" {line}"
        elif line and (one := read_requirement(line, environment)) is not None:
            found.append(replace(one, line=start))
            opaque = opaque or not one.name
    read = (installs_of(f"pip install{options}") or (Install(),))[0]
    opaque = opaque or read.opaque or bool(read.files or read.projects)
    return RequirementsFile(tuple(one for one in found if one.name), read, opaque)


def read_requirement(text: str, environment: Mapping[str, str] | None = None) -> StatedRequirement | None:
    """Return what a requirement states; None if it does not apply on Linux."""
    try:
        read = Requirement(text)
    except InvalidRequirement:
        if "/" in text or text.endswith((".whl", ".tar.gz", ".zip")) or text == ".":
            wheel = _WHEEL.search(unquote(text))
            name = canonicalize_name(wheel[1]) if wheel else ""
            return StatedRequirement(name, "", None, wheel=wheel[0] if wheel else "")
        match = _NAME.fullmatch(text)
        return StatedRequirement(canonicalize_name(match[1]) if match else "", "", None)
    name = canonicalize_name(read.name)
    applies = _applies(read.marker, environment)
    if applies is False:
        return None
    if read.url or applies is None:
        wheel = _WHEEL.search(unquote(read.url or ""))
        return StatedRequirement(
            name, "", None, written="" if read.url else text, wheel=wheel[0] if wheel else ""
        )
    pins = [one for one in read.specifier if one.operator == "==" and not one.version.endswith(".*")]
    pinned = len(read.specifier) == 1 and len(pins) == 1
    return StatedRequirement(name, pins[0].version if pinned else "", read.specifier, written=text)


def _applies(marker: Marker | None, environment: Mapping[str, str] | None) -> bool | None:
    """Return whether a marker holds on Linux; None if that depends on the Python."""
    if marker is None:
        return True
    answers = set()
    given = environment or {}
    for python in [given["python_version"]] if "python_version" in given else _PYTHONS:
        known = {**_LINUX, **given, "python_version": python, "python_full_version": f"{python}.9"}
        try:
            answers.add(marker.evaluate(known | {"extra": ""}))
        except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName):
            return None
    return answers.pop() if len(answers) == 1 else None
