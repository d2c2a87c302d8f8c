"""Packages as requirements, in files and in words of commands, state them.

A package is stated by a pin on the command line, or by a pin in a file that is copied and installed from.
Everything else that is installed is unknown: a range, a URL, a variable without a value, a
project, a conditional install.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from trainyard.image.context.install_commands import Install, installs_of
from trainyard.image.version_facts import Version, version

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*(.*)", re.DOTALL)
_WHEEL = re.compile(r"([A-Za-z0-9][\w.]*)-\d[^/]*\.whl")
_LINUX = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "extra": "",
}
PYTHONS = tuple(f"3.{number}" for number in range(8, 17))
UNREAD = "a project or a file of requirements"


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
    step: int = -1
    """The number of the command that installs it; -1 for the base image."""
    is_resolved: bool = False
    """Whether the resolver chose the version, and nothing ever stated another one."""
    build: str = ""
    """The origin of torch and its companions: pypi, named (an index or a suffix of PyTorch's own), cpu, rocm,
    private (its suffix is known, its index is not), base, or empty for unknown."""

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
    pin: str = ""
    """Empty if it is not pinned to one version."""
    allowed: SpecifierSet | None = None
    """None if it is not known which versions it allows."""
    written: str = ""
    """As written, for a resolver; empty if it has a URL or no resolver can read it."""
    wheel: str = ""
    """The file name, if the requirement is the path or URL of a wheel."""
    file: str = ""
    line: int = 0


@dataclass(frozen=True)
class RequirementsFile:
    """The content of a file of requirements, or of a project."""

    requirements: tuple[StatedRequirement, ...] = ()
    options: Install = field(default_factory=Install)
    """The indexes that it names, as a command without packages; opaque if it names more that is not read."""
    is_lock: bool = False
    """Whether it holds hashes: pip then takes pins only, and installs nothing that is not in the file."""


def locked_packages(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return name -> version, for all pins of a lock that apply with these marker variables."""
    pins: dict[str, set[str]] = {}
    for one in read_requirements(text, environment=environment).requirements:
        pins.setdefault(one.name, set()).add(one.pin)
    return {name: next(iter(found)) for name, found in pins.items() if len(found) == 1 and "" not in found}


def read_project(text: str, file: str, extras: Iterable[str] = ()) -> RequirementsFile:
    """Return what a pyproject.toml requires with these extras; `*` is all of them."""
    try:
        project = tomllib.loads(text)["project"]
        optional = project.get("optional-dependencies", {})
        named = {canonicalize_name(name): listed for name, listed in optional.items()}
        chosen = named if "*" in extras else {canonicalize_name(one) for one in extras}
        written = [*project.get("dependencies", ()), *(one for name in chosen for one in named.get(name, ()))]
        found = [one for one in map(read_requirement, written) if one and one.name]
        dynamic = {"dependencies", "optional-dependencies"} & set(project.get("dynamic", ()))
        requirements = tuple(replace(one, file=file) for one in found)
        return RequirementsFile(requirements, Install(opaque=UNREAD if dynamic else ""))
    except (tomllib.TOMLDecodeError, KeyError, AttributeError, TypeError):
        return RequirementsFile(options=Install(opaque=UNREAD))


def read_requirements(
    text: str, file: str = "", *, environment: Mapping[str, str] | None = None
) -> RequirementsFile:
    """Return the content of a file of requirements, as it applies on Linux."""
    found, words, line = list[StatedRequirement](), "", 1
    for written in re.findall(r"(?:[^\n]*\\\n)*[^\n]*\n?", text):
        plain = re.sub(r"(?:^|\s)#.*", "", written.replace("\\\n", " "))
        plain = re.sub(r"\s--(?:hash|config-settings|global-option)[= ]\S+", "", plain).strip()
        if plain.startswith("-"):
            words += f" {plain}"
        elif plain and (one := read_requirement(plain, environment)) is not None:
            found.append(replace(one, file=file, line=line))
        line += written.count("\n")
    read = (installs_of(f"pip install{words}") or (Install(),))[0]
    is_opaque = read.opaque or read.files or read.projects or any(not one.name for one in found)
    named = tuple(one for one in found if one.name)
    options = replace(read, opaque=UNREAD if is_opaque else "")
    return RequirementsFile(named, options, is_lock=" --hash=" in text)


def read_requirement(text: str, environment: Mapping[str, str] | None = None) -> StatedRequirement | None:
    """Return what a requirement states; None if it does not apply on Linux."""
    try:
        read = Requirement(text)
    except InvalidRequirement:
        if "/" in text or text.endswith((".whl", ".tar.gz", ".zip")) or text == ".":
            return _of_url("", text)
        match = _NAME.fullmatch(text)
        return StatedRequirement(canonicalize_name(match[1]) if match else "")
    name, applies = canonicalize_name(read.name), _applies(read.marker, environment)
    if applies is False:
        return None
    if read.url:
        return _of_url(name, read.url)
    if applies is None:
        return StatedRequirement(name, written=text)
    pins = [one for one in read.specifier if one.operator == "==" and not one.version.endswith(".*")]
    pinned = len(read.specifier) == 1 and len(pins) == 1
    return StatedRequirement(name, pins[0].version if pinned else "", read.specifier, text)


def _of_url(name: str, url: str) -> StatedRequirement:
    """Return the requirement of a URL or path, which states a version only as the name of a wheel."""
    wheel = _WHEEL.search(unquote(url))
    if wheel is None:
        return StatedRequirement(name)
    return StatedRequirement(name or canonicalize_name(wheel[1]), wheel=wheel[0])


def _applies(marker: Marker | None, environment: Mapping[str, str] | None) -> bool | None:
    """Return whether a marker holds on Linux; None if that depends on the Python."""
    if marker is None:
        return True
    known = {**_LINUX, **(environment or {})}
    pythons = [known["python_version"]] if "python_version" in known else PYTHONS
    numbers = ({"python_version": one, "python_full_version": f"{one}.9"} for one in pythons)
    try:
        answers = {marker.evaluate({**known, **python}) for python in numbers}
    except (UndefinedComparison, UndefinedEnvironmentName):
        return None
    return answers.pop() if len(answers) == 1 else None
