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
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Pin:
    """One package of a lock."""

    name: str
    """In its canonical form: lower case, hyphens."""
    version: str
    marker: str | None
    """Where the pin applies, for example `sys_platform == 'linux'`; None applies everywhere."""
    hashes: tuple[str, ...]
    """SHA-256 of every file that may be installed, lower-case hex."""

    def applies(self, environment: Mapping[str, str] | None = None) -> bool:
        """Return whether the pin applies in `environment` (marker variables).

        None is the running interpreter.
        """
        if self.marker is None:
            return True
        return Marker(self.marker).evaluate(dict(environment) if environment is not None else None)


def read_pins(text: str) -> tuple[Pin, ...]:
    """The pins of a lock as `uv pip compile --generate-hashes` writes it.

    Raises ConfigError for a requirement that is not pinned to one version.
    """
    pins = []
    for block in re.split(r"\n(?=[^\s#-])", "\n" + text):
        head, _, rest = block.strip().partition("\n")
        if not head or head.startswith(("#", "-")):
            continue
        match = _PIN.match(head)
        if match is None:
            raise ConfigError(f'the lock holds "{head}", which is not pinned to one version; run: make lock')
        hashes = tuple(_HASH.findall(rest))
        pins.append(Pin(canonicalize_name(match["name"]), match["version"], match["marker"], hashes))
    return tuple(pins)


def compare_versions(pins: tuple[Pin, ...], installed: Mapping[str, str]) -> tuple[str, ...]:
    """Return how the installed versions (canonical name -> version) differ from the pins that apply here."""
    wanted = {pin.name: pin.version for pin in pins if pin.applies()}
    return tuple(
        f"{name} {installed[name]} instead of {version}" if name in installed else f"{name} {version} missing"
        for name, version in sorted(wanted.items())
        if installed.get(name) != version
    )
