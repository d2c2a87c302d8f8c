"""Check the health of the nodes that the plan may use: readiness, cordons, taints, pressure, GPU faults.

A Warning event is not a verdict, and a condition with status True may be harmless. So only conditions that
are known to mean a fault count.
"""

from collections.abc import Iterator

from trainyard.cluster.check_definition import Check, Facts, Outcome
from trainyard.cluster.snapshot import MissingData


def judge(facts: Facts) -> Iterator[Outcome]:
    if isinstance(facts.snapshot.nodes, MissingData):
        yield Outcome.not_readable(facts.snapshot.nodes)
        return
    if not facts.fits:
        yield Outcome.not_applicable("there is no node to check")
        return
    found = list(facts.judge_nodes("node-health"))
    yield from found
    if not found:
        yield Outcome.success(f"all {len(facts.fits)} nodes are ready and without a known fault")


CHECK = Check("node-health", "readiness, taints and faults of the nodes", judge)
