"""Check a cluster before a job is sent: create what the configuration allows, then judge the cluster.

query ──judge──> lacks its claim or queue? ──apply──> query again ──> verdict, facts for the plan
"""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainyard.cluster.cluster_query import ClusterQuery
from trainyard.cluster.fitness import assess, on_hyperpod
from trainyard.cluster.fix import Step, plan_fix
from trainyard.cluster.snapshot import MissingData, Snapshot
from trainyard.cluster.verdict import Verdict
from trainyard.config.cluster import ClusterConfig
from trainyard.plan.instances import NodeRoom

if TYPE_CHECKING:
    from trainyard.jobs.job_spec import JobSpec

_OF_A_JOB = ("storage", "queue")
"""Checks whose fixes belong to a job. `trainyard cluster fix` handles what is installed in a cluster."""
_MIB = 2**20
_GPUS = "nvidia.com/"


def preflight(
    query: ClusterQuery,
    settings: ClusterConfig,
    *,
    find_digest: Callable[..., str | None],
    apply: Callable[[Step], object] | None,
) -> Verdict:
    """Check the cluster; `apply` creates the objects of a step, and None creates nothing.

    Raises ServiceError when the cluster cannot be queried.
    """
    verdict = query.judge(find_digest)
    steps = plan_fix(verdict, settings)
    lacking = [step for step in steps if step.automatic and step.check in _OF_A_JOB]
    if lacking and apply is not None:
        for step in lacking:
            apply(step)
        verdict = query.judge(find_digest)
    return verdict


def room_for(snapshot: Snapshot, job: "JobSpec") -> NodeRoom | None:
    """The resources that every fit node has for a pod; None if no fit node was seen.

    The requests of pods without GPUs are subtracted, because most of these pods belong to the node
    (DaemonSets). Pods with GPUs must end before the job starts.
    """
    fits = [fitness for fitness in assess(snapshot, job) if fitness.fit]
    if not fits:
        return None
    pods = () if isinstance(snapshot.pods, MissingData) else snapshot.pods
    taken = {fitness.node.name: Counter[str]() for fitness in fits}
    for pod in pods:
        if pod.node in taken and not any(pod.requests[n] for n in pod.requests if n.startswith(_GPUS)):
            taken[pod.node].update(pod.requests)

    def least(resource: str) -> int:
        """Return what is free on every node, in thousandths."""
        nodes = [fitness.node for fitness in fits]
        return min(max(0, node.allocatable.get(resource, 0) - taken[node.name][resource]) for node in nodes)

    labels = {fitness.node.labels.get("node.kubernetes.io/instance-type", "") for fitness in fits}
    return NodeRoom(
        gpus=min((f.expected_gpus if f.uncounted else f.gpus) or 0 for f in fits),
        cpu_millis=least("cpu"),
        memory_mib=least("memory") // 1000 // _MIB,
        efa=min(fitness.efa or 0 for fitness in fits),
        hugepages_mib=least("hugepages-2Mi") // 1000 // _MIB,
        instance_type=labels.pop() if len(labels) == 1 else "",
        on_hyperpod=all(on_hyperpod(fitness.node) for fitness in fits),
    )
