"""Read the packages that pyproject.toml or uv.lock states.

Each reader returns a RequirementsFile, which also says whether the file names packages that cannot be read.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from packaging.utils import canonicalize_name

from trainyard.image.conflict.stated_packages import (
    RequirementsFile,
    StatedRequirement,
    read_requirement,
    read_requirements,
)

_UNREADABLE = RequirementsFile(opaque=True)


def read_lock(path: str, text: str, extras: Iterable[str] = ()) -> RequirementsFile:
    """Return the content of a lock, whose format is known by the name of its file."""
    try:
        if path.endswith("uv.lock"):
            return _read_uv_lock(tomllib.loads(text), set(extras))
    except (tomllib.TOMLDecodeError, AttributeError, KeyError, TypeError, ValueError):
        return _UNREADABLE
    return read_requirements(text)


def read_project(text: str, extras: Iterable[str] = ()) -> RequirementsFile:
    """Return what a pyproject.toml requires with these extras; `*` is all of them."""
    try:
        project = tomllib.loads(text)["project"]
        optional = project.get("optional-dependencies", {})
        named = {canonicalize_name(name): listed for name, listed in optional.items()}
        chosen = named if "*" in extras else {canonicalize_name(one) for one in extras}
        written = [*project.get("dependencies", ()), *(one for name in chosen for one in named.get(name, ()))]
    except (tomllib.TOMLDecodeError, KeyError, AttributeError, TypeError):
        return _UNREADABLE
    dynamic = project.get("dynamic", ())
    opaque = "dependencies" in dynamic or "optional-dependencies" in dynamic
    return RequirementsFile(_read_all(written), opaque=opaque)


def _read_all(written: Iterable[str], line: int = 0) -> tuple[StatedRequirement, ...]:
    found = (read_requirement(text) for text in written)
    return tuple(replace(one, line=line) for one in found if one is not None and one.name)


def _read_uv_lock(lock: Mapping[str, Any], extras: set[str]) -> RequirementsFile:
    """Return the packages that the projects of the lock need, with these extras and uv's default group."""
    packages: dict[str, list[dict[str, Any]]] = {}
    for package in lock["package"]:
        packages.setdefault(package["name"], []).append(package)
    own = [p for p in lock["package"] if {"editable", "virtual"} & set(p["source"])]
    left = [(p["name"], "", frozenset[str]()) for p in own]
    for package in own:
        optional = package.get("optional-dependencies", {})
        chosen = optional if "*" in extras else extras
        wanted = [one for name in chosen for one in optional.get(name, ())]
        wanted += package.get("dev-dependencies", {}).get("dev", ())
        left += [_edge(one) for one in wanted if _applies(one)]
    seen, written = set(), dict[str, set[str]]()
    while left:
        name, chosen_version, with_extras = edge = left.pop()
        if edge in seen:
            continue
        seen.add(edge)
        for package in packages.get(name, ()):
            if chosen_version and package.get("version") != chosen_version:
                continue
            if "registry" in package["source"]:
                written.setdefault(name, set()).add(package["version"])
            wanted = list(package.get("dependencies", ()))
            wanted += [o for e in with_extras for o in package.get("optional-dependencies", {}).get(e, ())]
            left += [_edge(one) for one in wanted if _applies(one)]
    return RequirementsFile(_read_all(f"{n}=={next(iter(v))}" for n, v in written.items() if len(v) == 1))


def _edge(one: Mapping[str, Any]) -> tuple[str, str, frozenset[str]]:
    return one["name"], one.get("version", ""), frozenset(one.get("extra", ()))


def _applies(one: Mapping[str, Any]) -> bool:
    """Return whether a dependency applies on Linux, as far as its marker says."""
    marker = one.get("marker")
    return not marker or read_requirement(f"x ; {marker}") is not None
