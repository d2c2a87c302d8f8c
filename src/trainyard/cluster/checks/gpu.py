"""Compare the GPUs that can be allocated on each node with the node's instance type, or with its peers.

Allocatable resources are judged first, because labels and DaemonSets do not prove that a node offers a GPU.
"""

from collections import Counter
from collections.abc import Iterator

from trainyard.cluster.capacity import UNCOUNTED
from trainyard.cluster.check_definition import Check, Facts, list_names
from trainyard.cluster.snapshot import MissingData
from trainyard.plan.finding import Finding
from trainyard.plan.instances import GPU, plain_type


def judge(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.snapshot.nodes, MissingData):
        yield facts.snapshot.nodes.as_finding()
        return
    if not facts.wants_gpus:
        yield Finding.skipped("the plan asks for no GPU")
        return
    if not facts.fits:
        yield _no_node(facts)
        return
    found = list(facts.judge_nodes("gpu"))
    yield from found
    uncounted = [fitness.node.name for fitness in facts.fits if fitness.uncounted]
    if uncounted:
        yield Finding.skipped(f"not checked: {list_names(uncounted)}: {UNCOUNTED}")
    counts = Counter(fitness.gpus for fitness in facts.fits if not fitness.uncounted)
    if counts and not found:
        yield Finding.success("; ".join(f"{nodes} nodes with {gpus} GPUs" for gpus, nodes in counts.items()))


def _no_node(facts: Facts) -> Finding:
    assert not isinstance(facts.snapshot.nodes, MissingData)
    nodes, labels = facts.snapshot.nodes, facts.job.node_selector
    types = sorted({node.instance_type for node in nodes if node.instance_type})
    name = plain_type(facts.job.instance_type)
    wanted = f"of type {name}" if name else "with GPUs"
    offers = f"; there are: {list_names(types)}" if types else ""
    if facts.snapshot.may_grow:
        why = "whether Karpenter adds some is not known here"
        return Finding.skipped(f"not checked: no node {wanted} now{offers}; {why}")
    if labels and any(node.allocatable.get(GPU) for node in nodes):
        names = list_names([f"{name}={value}" for name, value in labels.items()])
        return Finding.error(
            f"no node {wanted} has the labels {names}{offers}",
            "remove them from the node selector (cluster.pod.node_selector), or add nodes that have them",
        )
    return Finding.error(
        f"no node {wanted}{offers}; none offers {GPU}",
        "add a node group with such instances, or name another instance type",
    )


CHECK = Check("gpu", "GPUs that can be allocated on each node", judge, essential=True)
