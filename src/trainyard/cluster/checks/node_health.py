"""Check the health of the nodes that the plan may use: readiness, cordons, taints, pressure, GPU faults.

A Warning event is not a verdict, and a condition with status True may be harmless. So only conditions that
are known to mean a fault count.
"""

from collections.abc import Iterator

from trainyard.cluster.check_definition import Check, Facts
from trainyard.cluster.snapshot import MissingData
from trainyard.plan.finding import Finding


def judge(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.snapshot.nodes, MissingData):
        yield facts.snapshot.nodes.as_finding()
        return
    if not facts.fits:
        yield Finding.skipped("there is no node to check")
        return
    found = list(facts.judge_nodes("node-health"))
    yield from found
    if not found:
        yield Finding.success(f"all {len(facts.fits)} nodes are ready and without a known fault")


CHECK = Check("node-health", "readiness, taints and faults of the nodes", judge)
