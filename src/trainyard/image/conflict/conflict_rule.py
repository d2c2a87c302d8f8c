"""The target machine of the rules on an image, and how they answer: a row of facts/rules.yaml, filled in."""

from dataclasses import dataclass
from typing import Any, Protocol

from trainyard.image.version_facts import Version, row_of, version_text
from trainyard.plan.finding import Edit, Finding, Severity
from trainyard.plan.instances import InstanceType

ERROR, WARNING = Severity.ERROR, Severity.WARNING


@dataclass(frozen=True)
class TargetMachine:
    """The machine that the image will run on; a part that is not named is unknown."""

    architecture: str = ""
    """For example sm_90."""
    efa: bool | None = None
    rdma: bool | None = None
    family: str = ""
    """For example p5."""
    driver: Version = ()
    instance: InstanceType | None = None

    @property
    def processor(self) -> str:
        """x86_64 or aarch64, as wheels name it."""
        return "aarch64" if "gb200" in self.family or "gb300" in self.family else "x86_64"


class Place(Protocol):
    """A line of a file; what has no `file` is in the Dockerfile."""

    @property
    def line(self) -> int: ...


def answer(
    row: str, place: Place | None, *, severity: Severity | None = None, edit: Edit | None = None, **names: Any
) -> Finding:
    """Return the finding of a row of facts/rules.yaml; `names` fill the braces of its words."""
    words = row_of("rules", rule=row)
    shown = {key: version_text(one) if isinstance(one, tuple) else one for key, one in names.items()}
    what, why, fix = (words[key].format_map(shown) for key in ("what", "why", "fix"))
    file, line = getattr(place, "file", ""), place.line if place else 0
    kind = severity or Severity(words["severity"])
    return Finding(what, kind, why, fix, file=file, line=line, rule=row.partition(".")[0], edit=edit)
