"""The lock file as data: every pinned package, and how an installed environment differs from it.

It installs nothing and asks no package index; the text and the installed versions are passed in.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from trainyard.errors import ConfigError

_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)\s*(?:;\s*(?P<marker>[^\\]+?))?\s*\\?$")


@dataclass(frozen=True)
class Pin:
    """One package of a lock."""

    name: str
    """In its canonical form: lower case, hyphens."""
    version: str
    marker: str | None
    """Where the pin applies, for example `sys_platform == 'linux'`; None applies everywhere."""

    def applies(self, environment: Mapping[str, str] | None = None) -> bool:
        """Return whether the pin applies to these marker variables; None: the running interpreter."""
        return self.marker is None or Marker(self.marker).evaluate(dict(environment) if environment else None)


def read_pins(text: str) -> tuple[Pin, ...]:
    """The pins of a lock as `uv pip compile --generate-hashes` writes it.

    Raises ConfigError for a requirement that is not pinned to one version.
    """
    pins = []
    for block in re.split(r"\n(?=[^\s#-])", "\n" + text):
        head = block.strip().partition("\n")[0]
        if not head or head.startswith(("#", "-")):
            continue
        match = _PIN.match(head)
        if match is None:
            raise ConfigError(f'the lock holds "{head}", which is not pinned to one version; run: make lock')
        pins.append(Pin(canonicalize_name(match["name"]), match["version"], match["marker"]))
    return tuple(pins)


def compare_versions(pins: tuple[Pin, ...], installed: Mapping[str, str]) -> tuple[str, ...]:
    """Return how the installed versions (canonical name -> version) differ from the pins that apply here."""
    wanted = {pin.name: pin.version for pin in pins if pin.applies()}
    return tuple(
        f"{name} {installed[name]} instead of {version}" if name in installed else f"{name} {version} missing"
        for name, version in sorted(wanted.items())
        if installed.get(name) != version
    )
