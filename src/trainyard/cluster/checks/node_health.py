"""Check the health of the nodes that the plan may use: readiness, cordons, taints, pressure, GPU faults.

A Warning event is not a verdict, and a condition with status True may be harmless. So only conditions that
are known to mean a fault count.
"""

from collections.abc import Iterator

from trainyard.cluster.check_definition import Check, Facts, Outcome, judge_nodes, not_asked, not_seen, passed
from trainyard.cluster.snapshot import Unseen


def judge(facts: Facts) -> Iterator[Outcome]:
    if isinstance(facts.snapshot.nodes, Unseen):
        yield not_seen(facts.snapshot.nodes)
        return
    if not facts.fits:
        yield not_asked("there is no node to look at")
        return
    found = list(judge_nodes(facts, "node-health"))
    yield from found
    if not found:
        yield passed(f"all {len(facts.fits)} nodes are ready and without a known fault")


CHECK = Check("node-health", "readiness, taints and faults of the nodes", judge)
