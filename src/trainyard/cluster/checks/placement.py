"""Where the nodes of a gang are: one zone, and how close in the network.

Placement groups cannot be seen through Kubernetes; EKS labels nodes with the layers of the network instead.
"""

from collections import Counter
from collections.abc import Iterator

from trainyard.cluster.checks.check import Check, Facts, Outcome, error, info, not_asked, passed, warning

_LAYERS = "topology.k8s.aws/network-node-layer-2"


def judge(facts: Facts) -> Iterator[Outcome]:
    wanted = facts.demand.nodes
    if wanted == 1:
        yield not_asked("one node has no neighbours")
        return
    rooms = [room for room in facts.capacity.rooms if room.places_empty]
    if sum(room.places_empty for room in rooms) < wanted:
        yield not_asked("too few fit nodes: see check capacity")
        return
    zones: Counter[str] = Counter()
    layers: Counter[str] = Counter()
    for room in rooms:
        zones[room.fitness.node.zone] += room.places_empty
        layers[room.fitness.node.labels.get(_LAYERS, "")] += room.places_empty
    if not zones.keys() - {""}:
        yield not_asked("the nodes have no zone labels")
        return
    if max(zones.values()) < wanted:
        yield _across(facts, zones)
        return
    if len(layers.keys() - {""}) > 1 and max(n for name, n in layers.items() if name) < wanted:
        parts = ", ".join(f"{count} below {name}" for name, count in layers.most_common() if name)
        yield info(
            f"the gang spans parts of the network: {parts}", "use one placement group for a faster exchange"
        )
        return
    zone, count = zones.most_common(1)[0]
    yield passed(f"{count} places in {zone or 'one zone'} for {wanted}")


def _across(facts: Facts, zones: "Counter[str]") -> Outcome:
    parts = ", ".join(f"{count} in {zone or 'an unknown zone'}" for zone, count in zones.most_common())
    text = f"no zone has room for {facts.demand.nodes} nodes: {parts}"
    uses_efa = any(fitness.expected_efa or fitness.efa for fitness in facts.fits)
    if uses_efa:
        return error(f"{text}; EFA does not cross zones", "add nodes in one zone, in one placement group")
    return warning(text, "nodes in one zone exchange faster, and without charge")


CHECK = Check("placement", "zone and closeness of the nodes", judge)
