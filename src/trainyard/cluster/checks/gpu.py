"""Compare the GPUs that can be allocated on each node with the node's instance type, or with its peers.

Allocatable resources are judged first, because labels and DaemonSets do not prove that a node offers a GPU.
"""

from collections import Counter
from collections.abc import Iterator

from trainyard.cluster.capacity import UNCOUNTED
from trainyard.cluster.check_definition import Check, Facts, Outcome, list_names
from trainyard.cluster.snapshot import MissingData
from trainyard.plan.instances import GPU, plain_type


def judge(facts: Facts) -> Iterator[Outcome]:
    if isinstance(facts.snapshot.nodes, MissingData):
        yield Outcome.not_readable(facts.snapshot.nodes)
        return
    if not facts.wants_gpus:
        yield Outcome.not_applicable("the plan asks for no GPU")
        return
    if not facts.fits:
        yield _no_node(facts)
        return
    found = list(facts.judge_nodes("gpu"))
    yield from found
    uncounted = [fitness.node.name for fitness in facts.fits if fitness.uncounted]
    if uncounted:
        yield Outcome.not_checked(f"{list_names(uncounted)}: {UNCOUNTED}")
    counts = Counter(fitness.gpus for fitness in facts.fits if not fitness.uncounted)
    if counts and not found:
        yield Outcome.success("; ".join(f"{nodes} nodes with {gpus} GPUs" for gpus, nodes in counts.items()))


def _no_node(facts: Facts) -> Outcome:
    assert not isinstance(facts.snapshot.nodes, MissingData)
    types = sorted({node.instance_type for node in facts.snapshot.nodes if node.instance_type})
    name = plain_type(facts.job.instance_type)
    wanted = f"of type {name}" if name else "with GPUs"
    offers = f"; there are: {list_names(types)}" if types else ""
    if facts.snapshot.may_grow:
        return Outcome.not_checked(
            f"no node {wanted} now{offers}; whether Karpenter adds some is not known here"
        )
    return Outcome.error(
        f"no node {wanted}{offers}; none offers {GPU}",
        "add a node group with such instances, or name another instance type",
    )


CHECK = Check("gpu", "GPUs that can be allocated on each node", judge, essential=True)
