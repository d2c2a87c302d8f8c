"""Check whether the gang fits now, after other jobs end, or never."""

from collections.abc import Iterator

from trainyard.cluster.admission import AdmissionTime
from trainyard.cluster.capacity import Fit
from trainyard.cluster.check_definition import Check, Facts
from trainyard.cluster.snapshot import MissingData
from trainyard.plan.finding import Finding

_HOLDERS = 3


def judge(facts: Facts) -> Iterator[Finding]:
    capacity, wanted = facts.capacity, facts.job.nodes
    if capacity.uncounted and capacity.fit is Fit.UNKNOWN:
        known = f"{capacity.places} places for {wanted} are known; {capacity.unseen}"
        yield Finding.skipped(f"not checked: {known}")
    elif capacity.fit is Fit.UNKNOWN:
        yield MissingData(capacity.unseen).as_finding()
    elif capacity.fit is Fit.NOW:
        yield Finding.success(
            f"{capacity.places} places for {wanted}, {capacity.gpus_free} of {capacity.gpus} GPUs free"
        )
    elif capacity.fit is Fit.NEVER:
        yield _never(facts)
    else:
        holders = "; ".join(
            f"{holder.namespace}/{holder.owner} holds {holder.gpus}" for holder in capacity.holders[:_HOLDERS]
        )
        text = f"{capacity.places} places free for {wanted}, {capacity.places_empty} when all GPUs are free"
        waits = facts.outlook.when in (AdmissionTime.NOW, AdmissionTime.LATER, AdmissionTime.NOT_CHECKED)
        judge_it = Finding.warning if waits or facts.snapshot.may_grow else Finding.error
        fix = "the queue holds the job until then" if waits else "wait, ask for fewer nodes, or use a queue"
        yield judge_it(f"{text}; {holders}" if holders else text, fix)


def _never(facts: Facts) -> Finding:
    capacity, wanted = facts.capacity, facts.job.nodes
    if not facts.fits:
        return Finding.skipped("there is no node to count: see check gpu")
    unfit = sum(not fitness.fit for fitness in facts.fits)
    rest = f"; {unfit} of {len(facts.fits)} nodes are not fit: see above" if unfit else ""
    text = f"{capacity.places_empty} places for {wanted}, even if nothing ran there{rest}"
    if facts.snapshot.may_grow:
        return Finding.skipped(f"not checked: {text}; whether Karpenter adds nodes is not known here")
    return Finding.error(text, "ask for fewer nodes, add nodes, or repair those that are not fit")


CHECK = Check("capacity", "room for the complete gang", judge)
