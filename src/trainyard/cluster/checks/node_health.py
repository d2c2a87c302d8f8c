"""Check the health of the nodes that the plan may use: readiness, cordons, taints, pressure, GPU faults.

A Warning event is not a verdict, and a condition with status True may be harmless. So only conditions that
are known to mean a fault count.
"""

from collections.abc import Iterator

from trainyard.cluster.check_definition import (
    Check,
    Facts,
    Outcome,
    judge_nodes,
    not_applicable,
    not_readable,
    success,
)
from trainyard.cluster.snapshot import MissingData


def judge(facts: Facts) -> Iterator[Outcome]:
    if isinstance(facts.snapshot.nodes, MissingData):
        yield not_readable(facts.snapshot.nodes)
        return
    if not facts.fits:
        yield not_applicable("there is no node to check")
        return
    found = list(judge_nodes(facts, "node-health"))
    yield from found
    if not found:
        yield success(f"all {len(facts.fits)} nodes are ready and without a known fault")


CHECK = Check("node-health", "readiness, taints and faults of the nodes", judge)
