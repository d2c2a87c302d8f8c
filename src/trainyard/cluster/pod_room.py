"""What one pod per node can have on every node that a job may come to, as the nodes really are.

Snapshot + Demand ──the nodes that are fit, less what runs on each of them anyway──> NodeRoom
"""

from collections.abc import Iterable

from trainyard.cluster.demand import Demand
from trainyard.cluster.fitness import Fitness, assess, on_hyperpod
from trainyard.cluster.snapshot import Pod, Snapshot, Unseen
from trainyard.plan.node_room import NodeRoom

_MIB = 2**20
_GPUS = "nvidia.com/"
_HUGEPAGES = "hugepages-2Mi"


def room_for(snapshot: Snapshot, demand: Demand) -> NodeRoom | None:
    """The room that every fit node has for a pod; None where no node was seen that is fit.

    What pods without GPUs request is taken off, because most of it belongs to the node (DaemonSets); pods
    with GPUs have to go before the job comes.
    """
    fits = [fitness for fitness in assess(snapshot, demand) if fitness.fit]
    if not fits:
        return None
    pods = () if isinstance(snapshot.pods, Unseen) else snapshot.pods
    taken = _taken(pods)
    labels = {fitness.node.labels.get("node.kubernetes.io/instance-type", "") for fitness in fits}
    return NodeRoom(
        gpus=min(fitness.gpus or 0 for fitness in fits),
        cpu_millis=min(_left(fitness, "cpu", taken) for fitness in fits),
        memory_mib=min(_left(fitness, "memory", taken) for fitness in fits) // 1000 // _MIB,
        efa=min(fitness.efa or 0 for fitness in fits),
        hugepages_mib=min(_left(fitness, _HUGEPAGES, taken) for fitness in fits) // 1000 // _MIB,
        instance_type=labels.pop() if len(labels) == 1 else "",
        on_hyperpod=all(on_hyperpod(fitness.node) for fitness in fits),
    )


def _taken(pods: Iterable[Pod]) -> dict[tuple[str, str], int]:
    """Node and resource -> what pods without GPUs request there, in thousandths."""
    found: dict[tuple[str, str], int] = {}
    for pod in pods:
        if any(name.startswith(_GPUS) and amount for name, amount in pod.requests.items()):
            continue
        for name, amount in pod.requests.items():
            found[pod.node, name] = found.get((pod.node, name), 0) + amount
    return found


def _left(fitness: Fitness, resource: str, taken: dict[tuple[str, str], int]) -> int:
    node = fitness.node
    return max(0, node.allocatable.get(resource, 0) - taken.get((node.name, resource), 0))
