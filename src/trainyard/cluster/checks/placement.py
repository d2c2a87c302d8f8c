"""Check that the nodes of a gang are in one zone."""

from collections import Counter
from collections.abc import Iterator

from trainyard.cluster.capacity import Fit, Room, places_by_zone
from trainyard.cluster.check_definition import Check, Facts
from trainyard.plan.finding import Finding


def judge(facts: Facts) -> Iterator[Finding]:
    wanted = facts.job.nodes
    if wanted == 1:
        yield Finding.skipped("one node has no neighbours")
        return
    rooms = [room for room in facts.capacity.rooms if room.places_empty]
    if sum(room.places_empty for room in rooms) < wanted:
        yield Finding.skipped("too few fit nodes: see check capacity")
        return
    # By the label that the pods require of each other.
    free, zones = places_by_zone(facts.snapshot, facts.job)
    if not zones.keys() - {""}:
        yield Finding.skipped("the nodes have no zone labels")
        return
    if _most(zones) < wanted:
        yield _across(facts, rooms, zones)
        return
    if facts.capacity.fit is Fit.NOW and _most(free) < wanted:
        yield _across(facts, rooms, free, now=" now")
        return
    zone, count = zones.most_common(1)[0]
    yield Finding.success(f"{count} places in {zone or 'one zone'} for {wanted}")


def _most(zones: "Counter[str]") -> int:
    """Return the most places in one zone; nodes without a label may be in any."""
    return max((count for zone, count in zones.items() if zone), default=0) + zones[""]


def _across(facts: Facts, rooms: list[Room], zones: "Counter[str]", *, now: str = "") -> Finding:
    listed = [(zone, count) for zone, count in zones.most_common() if count]
    parts = ", ".join(f"{count} in {zone or 'an unknown zone'}" for zone, count in listed)
    text = f"no zone has room for {facts.job.nodes} nodes{now}: {parts}"
    if not any(room.fitness.efa for room in rooms):
        return Finding.warning(text, "nodes in one zone exchange faster, and without charge")
    fix = "wait until one zone is free" if now else "add nodes in one zone, in one placement group"
    return Finding.error(f"{text}; EFA does not cross zones", fix)


CHECK = Check("placement", "the zone of the nodes", judge)
