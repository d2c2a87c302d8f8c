"""The verdict on a cluster: every check's findings, and whether the plan can run.

    Snapshot + JobSpec ──facts──> checks ──> Verdict

Ready means that no check found an error and every essential check could read its subject. The records are the
JSON of `trainyard cluster`, which the reports read too.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from trainyard.cluster.admission import outlook
from trainyard.cluster.capacity import Capacity, Room, measure
from trainyard.cluster.check_definition import Facts
from trainyard.cluster.checks import CHECKS
from trainyard.cluster.fitness import assess, on_hyperpod
from trainyard.cluster.hyperpod import Figures
from trainyard.cluster.needed_apis import ServedKind, choose_kind
from trainyard.cluster.snapshot import MissingData, Snapshot
from trainyard.errors import ConfigError, ExitCode
from trainyard.plan.finding import Finding, Severity
from trainyard.plan.instances import plain_type

if TYPE_CHECKING:
    from trainyard.jobs.job_spec import JobSpec

Json = dict[str, Any]
_CHECKS = {check.name: check for check in CHECKS}
_IN_A_MANIFEST = {
    r"(?<!cluster fix )--queue": "the label kueue.x-k8s.io/queue-name",
    "--volume": "persistentVolumeClaim",
    "--checkpoint-path": "mountPath",
    "--image-uri": "image",
    "--kind trainjob": "a TrainJob",
    "--tolerate": "a toleration of",
    r"cluster\.pod\.service_account": "serviceAccountName",
    r" \(cluster\.pod\.node_selector\)": "",
    r"set cluster\.volume and then trainyard cluster fix --apply, or ": "",
}
"""Options and keys for values of a job, and what a manifest has instead of them."""


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
    job = verdict.facts.job
    return {
        "ready": verdict.state is Readiness.READY,
        "verdict": verdict.state.value,
        "findings": [_finding(finding, job) for finding in found],
        "checks": [{**_finding(f, job), "looks_at": _CHECKS[f.subject].subject} for f in verdict.findings],
    }


def _finding(finding: Finding, job: "JobSpec") -> dict[str, str]:
    evidence, fix = finding.evidence, finding.fix
    for option, field in (_IN_A_MANIFEST if job.manifest else {}).items():
        evidence, fix = re.sub(option, field, evidence), re.sub(option, field, fix)
    return {
        "check": finding.subject,
        "severity": finding.severity.value,
        "evidence": evidence,
        "fix": job.target.in_text(fix),
    }


def cluster_record(snapshot: Snapshot, context: str) -> Json:
    """The cluster that was queried."""
    return {
        "context": context,
        "server": snapshot.server,
        "version": snapshot.version,
        "region": snapshot.region,
    }


def plan_record(job: "JobSpec") -> Json:
    """The job that it was judged for."""
    return {
        "shape": job.shape,
        "nodes": job.nodes,
        "gpus_per_node": job.gpus_per_node,
        "instance_type": plain_type(job.instance_type),
        "kind": job.kind,
        "namespace": job.namespace,
        "queue": job.queue,
        "image": job.image,
        "volume": job.claim,
    }


def usage_record(
    capacity: Capacity, job: "JobSpec", snapshot: Snapshot, *, use: Mapping[str, Figures]
) -> Json:
    """The free capacity, whether the gang fits, who holds the rest, and when the queue would admit it.

    `use` has the measured figures of each node.
    """
    expected = outlook(snapshot, job, tuple(room.fitness for room in capacity.rooms))
    return {
        "fits": capacity.fit.value,
        "places_free": capacity.places,
        "places": capacity.places_empty,
        "gpus": capacity.gpus,
        "gpus_free": capacity.gpus_free,
        "whole_nodes_free": list(capacity.whole_nodes),
        "nodes": [
            {**room_record(room), "use": use.get(room.fitness.node.name, {})} for room in capacity.rooms
        ],
        "holders": [asdict(holder) for holder in capacity.holders],
        "waiting": [asdict(holder) for holder in capacity.waiting],
        "queue": {"when": expected.when.value, "evidence": expected.evidence},
        "may_grow": snapshot.may_grow,
        "unknown": capacity.unseen,
    }


def room_record(room: Room) -> Json:
    """One node."""
    fitness = room.fitness
    node = fitness.node
    return {
        "name": node.name,
        "instance_type": node.instance_type,
        "zone": node.zone,
        "hyperpod": on_hyperpod(node),
        "fit": fitness.fit,
        "gpus": fitness.gpus,
        "gpus_expected": fitness.expected_gpus,
        "gpus_free": room.gpus_free,
        "efa": fitness.efa,
        "efa_expected": fitness.expected_efa,
        "efa_free": room.efa_free,
        "free": {name: amount / 1000 for name, amount in sorted(room.free.items())},
        "problems": [obstacle.evidence for obstacle in fitness.obstacles],
        "doubts": [doubt.evidence for doubt in fitness.doubts],
    }
