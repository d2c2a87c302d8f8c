"""The version of a release, which every place must state, and its notes from the changelog.

    tag = pyproject.toml = trainyard.__version__ = a dated section of CHANGELOG.md

`uv build` builds a release and `gh` publishes it, in release.yml, which then moves the tag of the major
version, such as v1, to it. That tag names the release whose version the files state.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import CheckFailedError, ConfigError
from trainyard.run.untrusted_files import read_named_text

_TAG = re.compile(r"v(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?|\d+)", re.ASCII)
_SECTION = re.compile(r"^## (?P<version>\S+), (?P<date>[^\n]+)\n(?P<notes>.*?)(?=^## |\Z)", re.M | re.S)


@dataclass(frozen=True)
class Release:
    """One version and its notes."""

    version: str
    """Without the `v` of the tag."""
    notes: str
    """Markdown, from the changelog."""

    @property
    def moving_tag(self) -> str:
        """Return the tag of its major version, which each final release moves."""
        return f"v{self.version.partition('.')[0]}"

    @property
    def is_preliminary(self) -> bool:
        """Return whether it is an alpha, a beta or a release candidate."""
        return re.search("[a-z]", self.version) is not None


def read_release(root: Path, tag: str) -> Release:
    """Return the release that `tag` names, read from the checkout `root`.

    Raises ConfigError when it is not a release's tag, CheckFailedError when the versions disagree.
    """
    named = _TAG.fullmatch(tag)
    if named is None:
        raise ConfigError(f"{tag[:80]!r} is not the tag of a release, such as v1.2.3, v1.2.3rc1 or v1")
    project = str(tomllib.loads(_text(root / "pyproject.toml")).get("project", {}).get("version"))
    library = re.search(r'^__version__ = "([^"]+)"$', _text(root / "src/trainyard/__init__.py"), re.M)
    version = named[1]
    if project.partition(".")[0] == version:
        version = project
    places = {
        "pyproject.toml": project,
        "src/trainyard/__init__.py": library[1] if library else "nothing",
    }
    problems = [
        f"{place} says {found}, the tag {version}" for place, found in places.items() if found != version
    ]
    sections = {match["version"]: match for match in _SECTION.finditer(_text(root / "CHANGELOG.md"))}
    section = sections.get(version)
    notes = section["notes"].strip() if section else ""
    if section is None:
        problems.append(f"CHANGELOG.md has no section {version}")
    elif not re.fullmatch(r"\d{4}-\d{2}-\d{2}", section["date"]):
        problems.append(f"CHANGELOG.md: {version} has no date such as 2026-11-21, but {section['date']!r}")
    if section is not None and not notes:
        problems.append(f"CHANGELOG.md: {version} has no text")
    if problems:
        raise CheckFailedError("\n".join([*problems, f"Nothing was released as {tag}."]))
    return Release(version, notes)


def _text(path: Path) -> str:
    return read_named_text(path, "name a folder that holds it")
