"""A finding: what was judged, how severe it is, the evidence, and what to do.

One type for clusters, machines, images, variables and manifests. Each of them decides what it judges and
which keys its JSON has; the words of a severity are the same everywhere.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class Severity(StrEnum):
    """The worst first; the values are the words that people and machines see."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    SKIPPED = "skipped"
    """Nothing is known: a tool, a login or a network is missing, or it does not apply."""
    UNUSED = "not used"
    """Neither the configuration nor the environment uses it."""
    PASSED = "passed"

    @property
    def verdict(self) -> str:
        """The word of a checklist, which is also that of a finished phase on a terminal."""
        return _VERDICTS[self]


_VERDICTS = {
    Severity.ERROR: "failed",
    Severity.WARNING: "degraded",
    Severity.INFO: "ok",
    Severity.SKIPPED: "not checked",
    Severity.UNUSED: "not used",
    Severity.PASSED: "ok",
}


@dataclass(frozen=True)
class Edit:
    """A change of one line: `old` becomes `new`."""

    line: int
    old: str
    new: str


@dataclass(frozen=True)
class Finding:
    """One statement about one subject."""

    subject: str
    """The name of the check, the variable, the field, or the problem in a few words."""
    severity: Severity
    evidence: str
    fix: str = ""
    """Empty where there is nothing to do."""
    area: str = ""
    """The part of a deployment, such as `machine` or `store`; in a manifest the object and container."""
    file: str = ""
    line: int = 0
    value: str = ""
    """The value of a variable as it is set; empty for a secret and for a missing variable."""
    rule: str = ""
    edit: Edit | None = None
    """The change that fixes it."""
    could_not_read: bool = False
    """A check was skipped because it could not read its subject, so nothing is known."""

    @classmethod
    def error(cls, evidence: str, fix: str, subject: str = "") -> Self:
        return cls(subject, Severity.ERROR, evidence, fix)

    @classmethod
    def warning(cls, evidence: str, fix: str, subject: str = "") -> Self:
        return cls(subject, Severity.WARNING, evidence, fix)

    @classmethod
    def success(cls, evidence: str, subject: str = "") -> Self:
        return cls(subject, Severity.PASSED, evidence)

    @classmethod
    def skipped(cls, reason: str) -> Self:
        """Return the finding of a check whose subject is not needed, or not judged here."""
        return cls("", Severity.SKIPPED, reason)


def finding_lines(finding: Finding) -> list[str]:
    """Return a finding as text: its place and subject, the evidence, what to do."""
    place = finding.file + (f":{finding.line}" if finding.line else "")
    value = f"={finding.value}" if finding.value else ""
    where = f" ({finding.area})" if finding.area else ""
    edit = " (--fix does it)" if finding.edit else ""
    start = f"{place}: {finding.severity}: {finding.subject}{value}{where}"
    return [start, f"    {finding.evidence}", f"    {finding.fix}{edit}"]
