"""Compare the GPUs that can be allocated on each node with the node's instance type, or with its peers.

Allocatable resources are judged first, because labels and DaemonSets do not prove that a node offers a GPU.
"""

from collections import Counter
from collections.abc import Iterator

from trainyard.cluster.check_definition import (
    Check,
    Facts,
    Outcome,
    error,
    judge_nodes,
    list_names,
    not_applicable,
    not_readable,
    success,
    warning,
)
from trainyard.cluster.demand import GPU, GPU_DRIVER
from trainyard.cluster.node_pools import pools_for
from trainyard.cluster.snapshot import MissingData, Scaler


def judge(facts: Facts) -> Iterator[Outcome]:
    if isinstance(facts.snapshot.nodes, MissingData):
        yield not_readable(facts.snapshot.nodes)
        return
    if not facts.wants_gpus:
        yield not_applicable("the plan asks for no GPU")
        return
    if not facts.fits:
        yield _no_node(facts)
        return
    found = list(judge_nodes(facts, "gpu"))
    yield from found
    if not found:
        counts = Counter(fitness.gpus for fitness in facts.fits)
        yield success("; ".join(f"{nodes} nodes with {gpus} GPUs" for gpus, nodes in counts.items()))


def _no_node(facts: Facts) -> Outcome:
    assert not isinstance(facts.snapshot.nodes, MissingData)
    types = sorted({node.instance_type for node in facts.snapshot.nodes if node.instance_type})
    wanted = f"of type {facts.demand.instance_type}" if facts.demand.instance_type else "with GPUs"
    offers = f"; there are: {list_names(types)}" if types else ""
    pools = facts.snapshot.scalers
    able = pools_for(pools, facts.demand)
    if able:
        made_by = _names(able)
        return warning(
            f"no node {wanted} now{offers}; Karpenter may make some ({made_by})",
            "whether EC2 has them is not known here: reserve the capacity, or watch for the first node",
        )
    found = () if isinstance(pools, MissingData) else pools
    unable = f"; no NodePool ({_names(found)}) makes any" if found else ""
    return error(
        f"no node {wanted}{offers}; none offers {GPU} or a slice of {GPU_DRIVER}{unable}",
        "add a node group or a NodePool with such instances, or name another instance type",
    )


def _names(pools: tuple[Scaler, ...]) -> str:
    return list_names(sorted(pool.name for pool in pools))


CHECK = Check("gpu", "GPUs that can be allocated on each node", judge, essential=True)
