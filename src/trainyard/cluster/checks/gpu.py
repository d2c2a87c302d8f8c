"""GPUs that can be allocated on each node, against what its type or its peers have.

Allocatable is judged first: labels and DaemonSets do not prove that a node offers a GPU.
"""

from collections import Counter
from collections.abc import Iterator

from trainyard.cluster.checks.check import (
    Check,
    Facts,
    Outcome,
    doubts,
    error,
    names,
    not_asked,
    not_seen,
    passed,
    told,
    warning,
)
from trainyard.cluster.demand import GPU
from trainyard.cluster.snapshot import Unseen


def judge(facts: Facts) -> Iterator[Outcome]:
    if isinstance(facts.snapshot.nodes, Unseen):
        yield not_seen(facts.snapshot.nodes)
        return
    if not facts.wants_gpus:
        yield not_asked("the plan asks for no GPU")
        return
    if not facts.fits:
        yield _no_node(facts)
        return
    found = [*told(facts, "gpu"), *doubts(facts, "gpu")]
    yield from found
    if not found:
        counts = Counter(fitness.gpus for fitness in facts.fits)
        yield passed("; ".join(f"{nodes} nodes with {gpus} GPUs" for gpus, nodes in counts.items()))


def _no_node(facts: Facts) -> Outcome:
    assert not isinstance(facts.snapshot.nodes, Unseen)
    types = sorted({node.instance_type for node in facts.snapshot.nodes if node.instance_type})
    wanted = f"of type {facts.demand.instance_type}" if facts.demand.instance_type else "with GPUs"
    offers = f"; there are: {names(types)}" if types else ""
    if facts.may_grow:
        return warning(
            f"no node {wanted} now{offers}", "Karpenter may make some: see that a NodePool allows this type"
        )
    return error(
        f"no node {wanted}{offers}; none offers {GPU} or a slice of gpu.nvidia.com",
        "add a node group with such instances, or name another instance type",
    )


CHECK = Check("gpu", "GPUs that can be allocated on each node", judge, essential=True)
