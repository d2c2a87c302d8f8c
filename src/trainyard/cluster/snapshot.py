"""What was seen of a cluster at one moment: frozen values with the needed fields only.

What could not be looked at is `Unseen` with its reason, so that a check cannot take it for an empty list. The
objects of the API become these values in `api_objects`; `cluster_query` asks for them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Amounts = Mapping[str, int]
"""Resource -> amount in thousandths (`quantities.thousandths`)."""


@dataclass(frozen=True)
class Unseen:
    """Something that was not looked at, or could not be."""

    reason: str
    denied: bool = False
    """Whether we were not allowed to look."""
    absent: bool = False
    """Whether the cluster has no such kind of object."""


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    status: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    """Of HyperPod and of node problems only."""
    taints: tuple[Taint, ...]
    cordoned: bool
    capacity: Amounts
    allocatable: Amounts
    conditions: tuple[Condition, ...]
    kubelet: str
    os_image: str
    created: float
    """Unix seconds."""
    provider: str
    """`aws:///us-west-2a/i-0123…`."""

    @property
    def instance_type(self) -> str:
        """As its label says, without HyperPod's prefix; empty where it has none."""
        name = self.labels.get("node.kubernetes.io/instance-type") or self.labels.get(
            "beta.kubernetes.io/instance-type", ""
        )
        return name.removeprefix("ml.")

    @property
    def zone(self) -> str:
        """The id of the availability zone where it is known (names differ per account), else its name."""
        return self.labels.get("topology.k8s.aws/zone-id") or self.labels.get(
            "topology.kubernetes.io/zone", ""
        )

    @property
    def ready(self) -> bool:
        return any(c.type == "Ready" and c.status == "True" for c in self.conditions)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that has not ended."""

    namespace: str
    name: str
    node: str
    """Empty while it waits for one."""
    requests: Amounts
    owner: str
    """What people know it by: the job it belongs to, else what owns it, else its own name."""
    priority: int
    waiting: str
    """Why it does not run: `ImagePullBackOff`, `Unschedulable`; empty when it runs."""
    images: tuple[str, ...]
    """Of a pod that waits; empty for the others."""
    raw_infiniband: bool
    """Mounts /dev/infiniband of the node itself, past the device plugin."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A DaemonSet or Deployment."""

    kind: str
    namespace: str
    name: str
    labels: Mapping[str, str]
    """Of the pods that it makes."""
    images: tuple[str, ...]
    wanted: int
    available: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Devices that a driver of Dynamic Resource Allocation publishes for a node."""

    driver: str
    node: str
    devices: tuple[str, ...]
    """`pool/device`."""


@dataclass(frozen=True)
class Volume:
    """A PersistentVolumeClaim with what is known of its volume and class."""

    name: str
    phase: str
    access_modes: tuple[str, ...]
    storage_class: str
    bytes: int
    driver: str = ""
    """The CSI driver, or the provisioner of the class; empty where it is not known."""
    waits_for_consumer: bool = False
    zones: tuple[str, ...] = ()
    """That the volume can be used in; empty: any."""
    local: bool = False
    """On a disk of one node."""


@dataclass(frozen=True)
class Quota:
    name: str
    hard: Amounts
    used: Amounts


@dataclass(frozen=True)
class Limit:
    """One item of a LimitRange for containers or pods."""

    name: str
    type: str
    max: Amounts
    default: Amounts


@dataclass(frozen=True)
class Namespace:
    """The one that the job goes to."""

    name: str
    exists: bool
    terminating: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Queue:
    """A LocalQueue of Kueue."""

    name: str
    cluster_queue: str
    active: bool
    reason: str
    stopped: bool
    pending: int


@dataclass(frozen=True)
class FlavorQuota:
    """What a ClusterQueue has of one resource in one flavor, in thousandths."""

    flavor: str
    resource: str
    nominal: int
    borrowing_limit: int | None
    """None: no limit of its own."""
    used: int


@dataclass(frozen=True)
class ClusterQueue:
    name: str
    cohort: str
    active: bool
    reason: str
    stopped: bool
    pending: int
    quotas: tuple[FlavorQuota, ...]


@dataclass(frozen=True)
class Flavor:
    name: str
    node_labels: Mapping[str, str]


@dataclass(frozen=True)
class Permission:
    """One thing that the plan needs to be allowed."""

    verb: str
    group: str
    resource: str
    namespace: str
    allowed: bool | None
    """None: could not be asked."""
    reason: str = ""

    @property
    def text(self) -> str:
        name = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {name}" + (f" in {self.namespace}" if self.namespace else "")


@dataclass(frozen=True)
class Trial:
    """What the API server says to an object that is sent as a dry run: nothing is created."""

    what: str
    status: int
    """Of HTTP; 0 where there was no answer."""
    message: str

    @property
    def accepted(self) -> bool:
        return self.status in (200, 201)


@dataclass(frozen=True)
class Image:
    """What the registry says of the image."""

    uri: str
    registry: str
    region: str
    """Of ECR; empty for other registries."""
    found: bool | None
    """None: not asked, `note` says why."""
    digest: str = ""
    note: str = ""


@dataclass(frozen=True)
class Snapshot:
    """A cluster at one moment. Everything but the server's version may be Unseen."""

    server: str
    version: str
    now: float
    """Of the clock here, Unix seconds."""
    clock_offset: float | None
    """Seconds that the server's clock is ahead of ours; None where it did not say."""
    region: str
    """Of AWS, from the nodes or the address; empty where it is not known."""
    groups: Mapping[str, tuple[str, ...]] | Unseen
    """API group -> served versions, the preferred one first."""
    resources: Mapping[str, tuple[str, ...]]
    """`group/version` -> resources, of the groups that matter for jobs."""
    permissions: tuple[Permission, ...]
    nodes: tuple[Node, ...] | Unseen
    pods: tuple[Pod, ...] | Unseen
    daemons: tuple[Workload, ...] | Unseen
    deployments: tuple[Workload, ...] | Unseen
    slices: tuple[Slice, ...] | Unseen
    allocated: Mapping[str, str] | Unseen
    """`driver/pool/device` of the devices that claims hold -> `namespace/pod`."""
    namespace: Namespace | Unseen
    quotas: tuple[Quota, ...] | Unseen
    limits: tuple[Limit, ...] | Unseen
    volume: Volume | Unseen | None
    """None: there is no such claim."""
    drivers: frozenset[str] | Unseen
    """Names of the CSI drivers."""
    priority_classes: frozenset[str] | Unseen
    secret: bool | Unseen
    queues: tuple[Queue, ...] | Unseen
    cluster_queues: tuple[ClusterQueue, ...] | Unseen
    flavors: tuple[Flavor, ...] | Unseen
    runtimes: tuple[str, ...] | Unseen
    """ClusterTrainingRuntimes."""
    scalers: tuple[str, ...] | Unseen
    """NodePools of Karpenter: nodes may still come."""
    hooks: frozenset[str] | Unseen
    """`resource.group` of everything that an admission webhook is called for."""
    job_trial: Trial | Unseen
    pod_trial: Trial | Unseen
    image: Image | Unseen
