"""Choose the zone of a job again that EFA keeps in one zone, by what its cluster has free now.

Nothing is changed here. Other jobs keep the zone that they have, or none.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from trainyard.cluster.capacity import choose_zone, places_by_zone
from trainyard.cluster.cluster_query import ClusterQuery
from trainyard.cluster.snapshot import ZONE, MissingData
from trainyard.jobs.job_reader import FoundJob
from trainyard.jobs.state.pod_facts import PodFacts
from trainyard.watch.failure_classes import FailureClass
from trainyard.watch.retry_decision import RetryClaim

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api


def zone_for_next(api: "Api", job: FoundJob, name: str, claim: RetryClaim | None = None) -> str | None:
    """Return the zone for the job that follows this one as `name`; None for a job that needs none.

    Empty, which leaves the zone to the first pod, if the nodes may not be read. Raises ServiceError.
    """
    plan = job.plan
    if plan is None or plan.zone is None:
        return None
    avoided = [node.name for node in claim.avoided if node.strictly] if claim else ()
    left = plan.zone if claim and claim.failure_class is FailureClass.UNSCHEDULABLE else None
    usage = ClusterQuery(api, plan).usage()
    return choose_zone(usage, replace(plan, name=name), avoided=avoided, left=left) or ""


def find_other_zone(api: "Api", job: FoundJob, pods: Collection[PodFacts]) -> str:
    """Return in a sentence which zone has room for a job of which a part waits in another; empty if none.

    Raises ServiceError.
    """
    plan = job.plan
    waiting = [pod for pod in pods if pod.live and pod.unschedulable and not pod.helps]
    if plan is None or plan.zone is None or not waiting or job.kind.why_not_suspended(job.raw):
        return ""
    snapshot = ClusterQuery(api, plan).usage()
    nodes = () if isinstance(snapshot.nodes, MissingData) else snapshot.nodes
    held = {pod.node for pod in pods if pod.live and not pod.helps}
    here = {node.labels.get(ZONE, "") for node in nodes if node.name in held} | {plan.zone}
    free, _ = places_by_zone(snapshot, plan)
    others = [zone for zone, places in free.most_common() if zone not in here and places >= plan.nodes]
    if not others or here == {""}:
        return ""
    return (
        f"{waiting[0].name} finds no node in {' and '.join(sorted(here - {''}))}, and {others[0]} has room "
        f"for all {plan.nodes} pods"
    )
