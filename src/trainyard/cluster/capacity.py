"""Compute the free capacity per node and GPU, whether the gang fits, and who holds the rest.

Free means allocatable minus the requests of the pods on the node, as the scheduler counts it. A pod that is
being deleted still holds its requests. Only GPUs and the node's limit of pods decide whether the gang fits,
because the processors and memory that a job will request are not known here.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from trainyard.cluster.fitness import Fitness, assess
from trainyard.cluster.snapshot import ZONE, Amounts, MissingData, Pod, Snapshot, Volume
from trainyard.errors import ExitCode
from trainyard.plan.instances import EFA, GPU

if TYPE_CHECKING:
    from trainyard.jobs.job_spec import JobSpec

UNCOUNTED = "GPUs that drivers of Dynamic Resource Allocation offer are not counted"


class Fit(StrEnum):
    """Answer whether the gang fits."""

    NOW = "now"
    LATER = "later"
    """The nodes exist, but others hold some of them."""
    NEVER = "never"
    """There are too few nodes, even if all were empty."""
    UNKNOWN = "unknown"
    """Nodes or pods could not be seen, or the GPUs of nodes are not counted."""


@dataclass(frozen=True)
class Room:
    """The free capacity of one node."""

    fitness: Fitness
    free: Amounts
    """In thousandths; a resource that the node does not offer is absent."""
    gpus_free: int
    efa_free: int
    places: int
    """Members of the gang that fit now."""
    places_empty: int
    """Members that would fit if nothing ran on the node."""


@dataclass(frozen=True)
class Holder:
    """A job, or another owner of pods, that holds GPUs."""

    namespace: str
    owner: str
    gpus: int
    nodes: int
    pods: int
    priority: int


@dataclass(frozen=True)
class Capacity:
    rooms: tuple[Room, ...]
    fit: Fit
    holders: tuple[Holder, ...]
    """Sorted by GPUs, most first."""
    waiting: tuple[Holder, ...]
    """The same for pods that wait for a node."""
    unseen: str = ""
    """The reason why the capacity is not known."""

    @property
    def places(self) -> int:
        return sum(room.places for room in self.rooms)

    @property
    def places_empty(self) -> int:
        return sum(room.places_empty for room in self.rooms)

    @property
    def uncounted(self) -> bool:
        """Whether the GPUs of a fit node are not counted."""
        return any(room.fitness.uncounted and room.fitness.fit for room in self.rooms)

    @property
    def gpus(self) -> int:
        """GPUs of all fit nodes."""
        return sum(room.fitness.gpus or 0 for room in self.rooms if room.fitness.fit)

    @property
    def gpus_free(self) -> int:
        return sum(room.gpus_free for room in self.rooms if room.fitness.fit)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a script that asks whether the gang fits."""
        return ExitCode.DONE if self.fit is Fit.NOW else ExitCode.NO

    @property
    def whole_nodes(self) -> tuple[str, ...]:
        """Fit nodes whose GPUs are all free."""
        fit = [room for room in self.rooms if room.fitness.fit and room.fitness.gpus]
        return tuple(room.fitness.node.name for room in fit if room.gpus_free == room.fitness.gpus)


def measure(snapshot: Snapshot, job: "JobSpec") -> Capacity:
    """Compute the free capacity for `job`."""
    fits = assess(snapshot, job)
    if isinstance(snapshot.nodes, MissingData):
        return Capacity((), Fit.UNKNOWN, (), (), snapshot.nodes.reason)
    if isinstance(snapshot.pods, MissingData):
        rooms = tuple(_room(fitness, (), job) for fitness in fits)
        never = sum(room.places_empty for room in rooms) < job.nodes
        fit = Fit.NEVER if never else Fit.UNKNOWN
        return Capacity(rooms, fit, (), (), snapshot.pods.reason)
    on_node: dict[str, list[Pod]] = {}
    for pod in snapshot.pods:
        on_node.setdefault(pod.node, []).append(pod)
    rooms = tuple(_room(fitness, on_node.get(fitness.node.name, ()), job) for fitness in fits)
    holders = _holders([pod for pod in snapshot.pods if pod.node])
    capacity = Capacity(rooms, _fit(rooms, job), holders, _holders(on_node.get("", [])))
    if capacity.fit is not Fit.NOW and capacity.uncounted:
        return replace(capacity, fit=Fit.UNKNOWN, unseen=UNCOUNTED)
    return capacity


def places_by_zone(
    snapshot: Snapshot, job: "JobSpec", avoided: Collection[str] = ()
) -> "tuple[Counter[str], Counter[str]]":
    """Return the places of each zone, now and if its nodes were empty, for zones that the claim is in.

    Nodes without the label of a zone are in the zone "". Nodes that a retry avoids do not count.
    """
    volume, free, empty = snapshot.volume, Counter[str](), Counter[str]()
    reached = volume.zones if isinstance(volume, Volume) else ()
    for room in measure(snapshot, job).rooms:
        zone = room.fitness.node.labels.get(ZONE, "")
        if room.fitness.node.name not in avoided and (not zone or not reached or zone in reached):
            free[zone] += room.places
            empty[zone] += room.places_empty
    return free, empty


def choose_zone(snapshot: Snapshot, job: "JobSpec", *, avoided: Collection[str] = ()) -> str | None:
    """Return the zone for a job whose pods EFA joins, because EFA does not cross zones.

    Empty leaves it to the first pod: no zone has room now, and several might. None means that the job needs
    nodes without the label, so that no zone can be required. Of several zones the one with most room is
    chosen, and the name of the job decides between equals: jobs sent at once then collide least.
    """
    free, empty = places_by_zone(snapshot, job, avoided)
    large = [zone for zone in empty if zone and empty[zone] >= job.nodes]
    if not large:
        return None if empty[""] else ""
    fitting = [zone for zone in large if free[zone] >= job.nodes]
    if not fitting:
        return large[0] if len(large) == 1 else ""

    def rank(zone: str) -> tuple[int, bytes]:
        return free[zone], hashlib.sha256(f"{job.name} {zone}".encode()).digest()

    return max(fitting, key=rank)


def _fit(rooms: tuple[Room, ...], job: "JobSpec") -> Fit:
    if sum(room.places for room in rooms) >= job.nodes:
        return Fit.NOW
    return Fit.LATER if sum(room.places_empty for room in rooms) >= job.nodes else Fit.NEVER


def _room(fitness: Fitness, pods: Sequence[Pod], job: "JobSpec") -> Room:
    """Return the free capacity of a node."""
    allocatable = fitness.node.allocatable
    free = dict(allocatable)
    for pod in pods:
        for name, amount in pod.requests.items():
            if name in free:
                free[name] -= amount
    if "pods" in free:
        free["pods"] -= 1000 * len(pods)
    devices_free = {}
    for name, whole in ((GPU, fitness.gpus), (EFA, fitness.efa)):
        used = (allocatable.get(name, 0) - free.get(name, 0)) // 1000
        devices_free[name] = max(0, (whole or 0) - used)
    empty = _places(fitness, job, gpus=fitness.gpus or 0, amounts=allocatable)
    now = _places(fitness, job, gpus=devices_free[GPU], amounts=free)
    return Room(fitness, free, devices_free[GPU], devices_free[EFA], now, empty)


def _places(fitness: Fitness, job: "JobSpec", *, gpus: int, amounts: Mapping[str, int]) -> int:
    pods = amounts["pods"] // 1000 if "pods" in amounts else 1 << 30  # a node may set no limit
    if not fitness.fit or pods <= 0:
        return 0
    if job.gpus_per_node == 0:
        return 1
    if job.gpus_per_node is None:
        return int(gpus > 0 and gpus == fitness.gpus)
    return min(pods, gpus // job.gpus_per_node)


def _holders(pods: list[Pod]) -> tuple[Holder, ...]:
    groups: dict[tuple[str, str], list[tuple[Pod, int]]] = {}
    for pod in pods:
        if gpus := pod.requests.get(GPU, 0) // 1000:
            groups.setdefault((pod.namespace, pod.owner), []).append((pod, gpus))
    found = (
        Holder(
            namespace,
            owner,
            gpus=sum(gpus for _, gpus in members),
            nodes=len({pod.node for pod, _ in members if pod.node}),
            pods=len(members),
            priority=max(pod.priority for pod, _ in members),
        )
        for (namespace, owner), members in groups.items()
    )
    return tuple(sorted(found, key=lambda holder: (-holder.gpus, holder.namespace, holder.owner)))
