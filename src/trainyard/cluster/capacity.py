"""Compute the free capacity per node and GPU, whether the gang fits, and who holds the rest.

Free means allocatable minus the requests of the pods on the node, as the scheduler counts it. A pod that is
being deleted still holds its requests. Only GPUs and the node's limit of pods decide whether the gang fits,
because the processors and memory that a job will request are not known here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from trainyard.cluster.demand import EFA, EFA_DRIVER, GPU, GPU_DRIVER, Demand
from trainyard.cluster.fitness import Fitness, assess, devices_by_node
from trainyard.cluster.snapshot import Amounts, Pod, Snapshot, Unseen
from trainyard.errors import ExitCode


class Fit(StrEnum):
    """Whether the gang fits."""

    NOW = "now"
    LATER = "later"
    """The nodes exist, but others hold some of them."""
    NEVER = "never"
    """There are too few nodes, even if all were empty."""
    UNKNOWN = "unknown"
    """Nodes or pods could not be seen."""


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
    priority: int
    pods: int


@dataclass(frozen=True)
class Capacity:
    rooms: tuple[Room, ...]
    fit: Fit
    nodes_wanted: int
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
    def gpus(self) -> int:
        """GPUs of all fit nodes."""
        return sum(room.fitness.gpus or 0 for room in self.rooms if room.fitness.fit)

    @property
    def gpus_free(self) -> int:
        return sum(room.gpus_free for room in self.rooms if room.fitness.fit)

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(room.fitness.node.name for room in self.rooms)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a script that asks whether the gang fits."""
        return ExitCode.DONE if self.fit is Fit.NOW else ExitCode.NO

    @property
    def whole_nodes(self) -> tuple[str, ...]:
        """Fit nodes whose GPUs are all free."""
        return tuple(
            room.fitness.node.name
            for room in self.rooms
            if room.fitness.fit and room.fitness.gpus and room.gpus_free == room.fitness.gpus
        )


def measure(snapshot: Snapshot, demand: Demand) -> Capacity:
    """Compute the free capacity for `demand`."""
    fits = assess(snapshot, demand)
    if isinstance(snapshot.nodes, Unseen):
        return Capacity((), Fit.UNKNOWN, demand.nodes, (), (), snapshot.nodes.reason)
    if isinstance(snapshot.pods, Unseen):
        rooms = tuple(_room(fitness, (), demand, held={}) for fitness in fits)
        never = sum(room.places_empty for room in rooms) < demand.nodes
        fit = Fit.NEVER if never else Fit.UNKNOWN
        return Capacity(rooms, fit, demand.nodes, (), (), snapshot.pods.reason)
    on_node: dict[str, list[Pod]] = {}
    for pod in snapshot.pods:
        on_node.setdefault(pod.node, []).append(pod)
    held = held_devices(snapshot)
    rooms = tuple(_room(fitness, on_node.get(fitness.node.name, ()), demand, held=held) for fitness in fits)
    holders = _holders([pod for pod in snapshot.pods if pod.node], _by_pod(snapshot))
    waiting = _holders(on_node.get("", []), {})
    return Capacity(rooms, _fit(rooms, demand), demand.nodes, holders, waiting)


def _fit(rooms: tuple[Room, ...], demand: Demand) -> Fit:
    if sum(room.places for room in rooms) >= demand.nodes:
        return Fit.NOW
    return Fit.LATER if sum(room.places_empty for room in rooms) >= demand.nodes else Fit.NEVER


def _room(
    fitness: Fitness,
    pods: "tuple[Pod, ...] | list[Pod]",
    demand: Demand,
    *,
    held: Mapping[str, tuple[int, int]],
) -> Room:
    free = dict(fitness.node.allocatable)
    for pod in pods:
        for name, amount in pod.requests.items():
            if name in free:
                free[name] -= amount
    if "pods" in free:
        free["pods"] -= 1000 * len(pods)
    gpus_held, efa_held = held.get(fitness.node.name, (0, 0))
    used = (fitness.node.allocatable.get(GPU, 0) - free.get(GPU, 0)) // 1000
    gpus_free = max(0, (fitness.gpus or 0) - gpus_held - used)
    efa_used = (fitness.node.allocatable.get(EFA, 0) - free.get(EFA, 0)) // 1000
    efa_free = max(0, (fitness.efa or 0) - efa_held - efa_used)
    empty = _places(fitness, demand, gpus=fitness.gpus or 0, pods=_pod_places(fitness.node.allocatable))
    now = _places(fitness, demand, gpus=gpus_free, pods=_pod_places(free))
    return Room(fitness, free, gpus_free, efa_free, now, empty)


def _pod_places(amounts: Mapping[str, int]) -> int:
    """The number of pods that the node still accepts; a large number if the node sets no limit."""
    return max(0, amounts["pods"] // 1000) if "pods" in amounts else 1 << 30


def _places(fitness: Fitness, demand: Demand, *, gpus: int, pods: int) -> int:
    if not fitness.fit or pods <= 0:
        return 0
    if demand.gpus_per_node == 0:
        return 1
    if demand.gpus_per_node is None:
        return int(gpus > 0 and gpus == fitness.gpus)
    return min(pods, gpus // demand.gpus_per_node)


def held_devices(snapshot: Snapshot) -> Mapping[str, tuple[int, int]]:
    """Node -> GPUs and EFA interfaces that ResourceClaims hold."""
    if isinstance(snapshot.allocated, Unseen):
        return {}
    found: dict[str, tuple[int, int]] = {}
    for index, driver in enumerate((GPU_DRIVER, EFA_DRIVER)):
        for node, devices in devices_by_node(snapshot, driver).items():
            count = sum(f"{driver}/{device}" in snapshot.allocated for device in devices)
            before = found.get(node, (0, 0))
            found[node] = (count, before[1]) if index == 0 else (before[0], count)
    return found


def _by_pod(snapshot: Snapshot) -> Mapping[str, int]:
    """`namespace/pod` -> GPUs that its claims hold."""
    found: dict[str, int] = {}
    for device, pod in () if isinstance(snapshot.allocated, Unseen) else snapshot.allocated.items():
        if device.startswith(f"{GPU_DRIVER}/"):
            found[pod] = found.get(pod, 0) + 1
    return found


def _holders(pods: list[Pod], claimed: Mapping[str, int]) -> tuple[Holder, ...]:
    groups: dict[tuple[str, str], list[tuple[Pod, int]]] = {}
    for pod in pods:
        gpus = pod.requests.get(GPU, 0) // 1000 + claimed.get(f"{pod.namespace}/{pod.name}", 0)
        if gpus:
            groups.setdefault((pod.namespace, pod.owner), []).append((pod, gpus))
    found = (
        Holder(
            namespace,
            owner,
            gpus=sum(gpus for _, gpus in members),
            nodes=len({pod.node for pod, _ in members if pod.node}),
            priority=max(pod.priority for pod, _ in members),
            pods=len(members),
        )
        for (namespace, owner), members in groups.items()
    )
    return tuple(sorted(found, key=lambda holder: (-holder.gpus, holder.namespace, holder.owner)))
