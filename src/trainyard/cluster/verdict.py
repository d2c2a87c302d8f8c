"""The verdict on a cluster: every check's findings, and whether the plan can run.

    Snapshot + JobSpec ──facts──> checks ──> Verdict

Ready means that no check found an error and every essential check could read its subject.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from trainyard.cluster.admission import outlook
from trainyard.cluster.capacity import measure
from trainyard.cluster.check_definition import Facts
from trainyard.cluster.checks import CHECKS
from trainyard.cluster.fitness import assess
from trainyard.cluster.needed_apis import ServedKind, choose_kind
from trainyard.cluster.snapshot import MissingData, Snapshot
from trainyard.errors import ConfigError, ExitCode
from trainyard.plan.finding import Finding, Severity
from trainyard.run.suggested_commands import ClusterTarget

if TYPE_CHECKING:
    from trainyard.jobs.job_spec import JobSpec

_CHECKS = {check.name: check for check in CHECKS}


class Readiness(StrEnum):
    """Verdict whether the cluster can run the plan; the values are the words that people see."""

    READY = "ready"
    NOT_READY = "not ready"
    UNKNOWN = "not known"


def require_checks(names: Iterable[str], *, others: Iterable[str] = ()) -> None:
    """Raise ConfigError for a name that no check has; `others` are further names to suggest."""
    known = {*others, *_CHECKS}
    for name in names:
        if name not in known:
            raise ConfigError(f"{name[:60]!r} is not a check; known: {', '.join(sorted(known))}")


@dataclass(frozen=True)
class Verdict:
    facts: Facts
    findings: tuple[Finding, ...]
    """The findings of all checks, including those that passed."""

    @property
    def state(self) -> Readiness:
        if any(finding.severity is Severity.ERROR for finding in self.findings):
            return Readiness.NOT_READY
        return Readiness.UNKNOWN if self.blind else Readiness.READY

    @property
    def blind(self) -> tuple[Finding, ...]:
        """Essential checks that could not read their subject."""
        return tuple(f for f in self.findings if f.could_not_read and _CHECKS[f.subject].essential)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a script that asks for the verdict."""
        if self.state is Readiness.READY:
            return ExitCode.DONE
        lost = self.state is Readiness.UNKNOWN and self.service_failed
        return ExitCode.REFUSED if lost else ExitCode.NO

    def exit_code_without(self, accepted: Collection[str]) -> ExitCode:
        """The exit code without errors of `accepted` checks. Raises ConfigError for an unknown check."""
        require_checks(accepted)
        kept = tuple(finding for finding in self.findings if finding.subject not in accepted)
        return replace(self, findings=kept).exit_code

    @property
    def service_failed(self) -> bool:
        """Return whether an essential check could not read its subject because the API failed."""
        snapshot = self.facts.snapshot
        seen = (snapshot.nodes, snapshot.groups)
        return any(isinstance(part, MissingData) and not part.denied for part in seen)


def facts_of(snapshot: Snapshot, job: "JobSpec", kinds: Sequence[ServedKind]) -> Facts:
    """Derive the facts that the checks judge."""
    fits = assess(snapshot, job)
    return Facts(
        snapshot=snapshot,
        job=job,
        kinds=tuple(kinds),
        kind=choose_kind(job.kind, kinds, snapshot.resources),
        fits=fits,
        capacity=measure(snapshot, job),
        outlook=outlook(snapshot, job, fits),
    )


def judge_cluster(snapshot: Snapshot, job: "JobSpec", kinds: Sequence[ServedKind]) -> Verdict:
    """Run every check."""
    facts = facts_of(snapshot, job, kinds)
    found = (replace(each, subject=check.name) for check in CHECKS for each in check.judge(facts))
    return Verdict(facts, tuple(found))


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    """The verdict as plain data. `findings` leaves out what passed; `checks` includes it."""
    found = [finding for finding in verdict.findings if finding.severity is not Severity.PASSED]
    target = verdict.facts.job.target
    return {
        "ready": verdict.state is Readiness.READY,
        "verdict": verdict.state.value,
        "findings": [_finding(finding, target) for finding in found],
        "checks": [{**_finding(f, target), "looks_at": _CHECKS[f.subject].subject} for f in verdict.findings],
    }


def _finding(finding: Finding, target: ClusterTarget) -> dict[str, str]:
    return {
        "check": finding.subject,
        "severity": finding.severity.value,
        "evidence": finding.evidence,
        "fix": target.in_text(finding.fix),
    }
