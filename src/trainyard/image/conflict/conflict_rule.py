"""The target machine of the rules on an image, and how they make a finding."""

from dataclasses import dataclass
from typing import Any

from trainyard.image.conflict.version_facts import Version
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


def image_finding(
    line: int,
    what: str,
    why: str,
    fix: str,
    *,
    severity: Severity = ERROR,
    file: str = "",
    edit: Edit | None = None,
    rule: str = "",
) -> Finding:
    """Return one problem; without a `file` it is in the Dockerfile, and `judge_versions` sets `rule`."""
    return Finding(what, severity, why, fix, file=file, line=line, rule=rule, edit=edit)


def finding_record(found: Finding) -> dict[str, Any]:
    """Return a finding as plain data."""
    place = {"rule": found.rule, "severity": found.severity.value, "file": found.file, "line": found.line}
    words = {"what": found.subject, "why": found.evidence, "fix": found.fix}
    return {**place, **words, "fixable": found.edit is not None}
