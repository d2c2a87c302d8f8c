"""Check Kueue's queue for the plan: its quota, and when it would admit the job."""

from collections.abc import Iterator

from trainyard.cluster.admission import AdmissionTime, uncovered_efa
from trainyard.cluster.check_definition import Check, Facts
from trainyard.cluster.snapshot import MissingData
from trainyard.plan.finding import Finding
from trainyard.plan.instances import EFA


def judge(facts: Facts) -> Iterator[Finding]:
    expected = facts.outlook
    lacking = uncovered_efa(facts.snapshot, facts.job, facts.fits)
    if lacking and expected.when is not AdmissionTime.NEVER:
        yield Finding.warning(
            f"ClusterQueue {lacking} has no quota for {EFA}, which the pods request: they are never "
            "admitted, unless Kueue leaves it out (excludeResourcePrefixes)",
            f"add {EFA} to the covered resources of {lacking}",
        )
    if expected.when is AdmissionTime.NO_QUEUE:
        queues = facts.snapshot.queues
        named = "" if isinstance(queues, MissingData) else ", ".join(queue.name for queue in queues)
        has = f"; the namespace has: {named} (--queue)" if named else ""
        yield Finding.skipped(f"no queue is named{has}")
    elif expected.when is AdmissionTime.NOT_CHECKED:
        yield Finding.skipped(f"not checked: {expected.evidence}")
    elif expected.when is AdmissionTime.UNKNOWN:
        yield MissingData(expected.evidence).as_finding()
    elif expected.when is AdmissionTime.NEVER:
        yield Finding.error(expected.evidence, expected.fix or "name another queue with --queue")
    elif expected.when is AdmissionTime.LATER:
        yield Finding.warning(
            expected.evidence, "wait, or name another queue; a higher priority class may preempt"
        )
    else:
        yield Finding.success(expected.evidence)


CHECK = Check("queue", "the queue of Kueue and its quota", judge)
