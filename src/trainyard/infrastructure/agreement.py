"""Compare an account with the list: a verdict per resource, and the settings that differ.

    wanted, found  ──compare_settings──>  Standing

Only settings in the list are compared. Settings that people added, such as a rule or a tag, are left alone.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trainyard.errors import ExitCode
from trainyard.infrastructure.values import Resource


class Standing(StrEnum):
    """The state of a resource compared with the list."""

    AGREES = "ok"
    MADE = "made"
    CHANGED = "changed"
    WOULD_MAKE = "would make"
    WOULD_CHANGE = "would change"
    REMOVED = "removed"
    WOULD_REMOVE = "would remove"
    ABSENT = "not there"
    KEPT = "kept"
    """Not removed: it holds data, or others may use it."""
    REFUSED = "refused"


@dataclass(frozen=True)
class ResourceFinding:
    """One resource, and the change that was or would be made."""

    resource: Resource
    name: str
    """Its name in AWS."""
    standing: Standing
    text: str = ""
    differences: tuple[str, ...] = ()

    def row(self) -> str:
        """The finding as a line of a table."""
        about = self.text or ", ".join(self.differences)
        kind = self.resource.type.removeprefix("AWS::").replace("::", " ")
        return f"{self.standing:<12} {kind:<20} {self.name}{'  ' if about else ''}{about}".rstrip()

    def record(self) -> dict[str, Any]:
        """The finding as plain data."""
        return {
            "resource": self.resource.name,
            "type": self.resource.type,
            "name": self.name,
            "standing": str(self.standing),
            "text": self.text,
            "differences": list(self.differences),
        }


def compare_settings(wanted: Any, found: Any, path: str = "") -> Iterator[str]:
    """The settings of `wanted` that `found` does not have, as dotted names with both values."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for key, value in wanted.items():
            below = f"{path}.{key}" if path else str(key)
            if key not in found:
                yield f"{below} is missing"
            else:
                yield from compare_settings(value, found[key], below)
    elif _listed(wanted) != _listed(found):
        yield f"{path} is {_short(found)}, not {_short(wanted)}"


def _listed(value: Any) -> Any:
    """Normalise lists of actions, variables or modes: their order is ignored, and `[x]` equals `x`."""
    if isinstance(value, Mapping):
        return {key: _listed(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        inner = sorted(
            (_listed(each) for each in value), key=lambda each: json.dumps(each, sort_keys=True, default=str)
        )
        return inner[0] if len(inner) == 1 else inner
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def exit_code_of_findings(findings: Sequence[ResourceFinding]) -> ExitCode:
    """0 when the account agrees; 1 when something remains; 4 when AWS refused something."""
    standings = {finding.standing for finding in findings}
    if Standing.REFUSED in standings:
        return ExitCode.REFUSED
    remains = {Standing.WOULD_MAKE, Standing.WOULD_CHANGE, Standing.WOULD_REMOVE}
    return ExitCode.NO if standings & remains else ExitCode.DONE
