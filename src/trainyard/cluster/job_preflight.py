"""Check a cluster before a job is sent: create what the configuration allows, then judge the cluster.

query ──judge──> lacks its claim or queue? ──apply──> query again ──> verdict, facts for the plan
"""

from collections.abc import Callable, Iterable

from trainyard.cluster.cluster_query import ClusterQuery
from trainyard.cluster.demand import Demand
from trainyard.cluster.fitness import Fitness, assess, on_hyperpod
from trainyard.cluster.fix import Step, plan_fix
from trainyard.cluster.snapshot import MissingData, Pod, Snapshot
from trainyard.cluster.verdict import Verdict, judge_cluster
from trainyard.config.cluster import ClusterConfig
from trainyard.plan.node_room import NodeRoom

_OF_A_JOB = ("storage", "queue")
"""Checks whose remedies belong to a job. `trainyard cluster fix` handles what is installed in a cluster."""
_MIB = 2**20
_GPUS = "nvidia.com/"
_HUGEPAGES = "hugepages-2Mi"


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
    verdict = judge_cluster(query.snapshot(find_digest), query.demand)
    steps = plan_fix(verdict, settings)
    lacking = [step for step in steps if step.automatic and step.check in _OF_A_JOB]
    if lacking and apply is not None:
        for step in lacking:
            apply(step)
        verdict = judge_cluster(query.snapshot(find_digest), query.demand)
    return verdict


def room_for(snapshot: Snapshot, demand: Demand) -> NodeRoom | None:
    """The resources that every fit node has for a pod; None if no fit node was seen.

    The requests of pods without GPUs are subtracted, because most of these pods belong to the node
    (DaemonSets). Pods with GPUs must end before the job starts.
    """
    fits = [fitness for fitness in assess(snapshot, demand) if fitness.fit]
    if not fits:
        return None
    pods = () if isinstance(snapshot.pods, MissingData) else snapshot.pods
    taken = _requests_without_gpus(pods)
    labels = {fitness.node.labels.get("node.kubernetes.io/instance-type", "") for fitness in fits}
    return NodeRoom(
        gpus=min((f.expected_gpus if f.uncounted else f.gpus) or 0 for f in fits),
        cpu_millis=min(_free_amount(fitness, "cpu", taken) for fitness in fits),
        memory_mib=min(_free_amount(fitness, "memory", taken) for fitness in fits) // 1000 // _MIB,
        efa=min(fitness.efa or 0 for fitness in fits),
        hugepages_mib=min(_free_amount(fitness, _HUGEPAGES, taken) for fitness in fits) // 1000 // _MIB,
        instance_type=labels.pop() if len(labels) == 1 else "",
        on_hyperpod=all(on_hyperpod(fitness.node) for fitness in fits),
    )


def _requests_without_gpus(pods: Iterable[Pod]) -> dict[tuple[str, str], int]:
    """Node and resource -> the requests of pods without GPUs there, in thousandths."""
    found: dict[tuple[str, str], int] = {}
    for pod in pods:
        if any(name.startswith(_GPUS) and amount for name, amount in pod.requests.items()):
            continue
        for name, amount in pod.requests.items():
            found[pod.node, name] = found.get((pod.node, name), 0) + amount
    return found


def _free_amount(fitness: Fitness, resource: str, taken: dict[tuple[str, str], int]) -> int:
    node = fitness.node
    return max(0, node.allocatable.get(resource, 0) - taken.get((node.name, resource), 0))
