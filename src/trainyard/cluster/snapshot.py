"""The observed state of a cluster at one moment: frozen values with the needed fields only.

A part that could not be read is `MissingData` with its reason, so that a check cannot mistake it for an empty
list. `cluster_query` queries the API, and `api_objects` converts its objects to these values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainyard.plan.finding import Finding, Severity
from trainyard.plan.instances import plain_type

ZONE = "topology.kubernetes.io/zone"
"""The label of a node that holds the name of its availability zone."""
# Drivers of Dynamic Resource Allocation that offer GPUs and EFA without their resources.
GPU_DRIVER, EFA_DRIVER = "nvidia-dra-driver", "dranet"
Amounts = Mapping[str, int]
"""Resource -> amount in thousandths (`resource_quantities.thousandths`)."""


@dataclass(frozen=True)
class MissingData:
    """A part of the snapshot that was not requested or could not be read."""

    reason: str
    denied: bool = False
    """Whether we were not allowed to read it."""
    absent: bool = False
    """Whether the cluster has no such kind of object."""

    def as_finding(self) -> Finding:
        """Return the finding of a check that could not read its subject."""
        reason = self.reason if self.denied else f"could not be read: {self.reason}"
        fix = "ask the owner of the cluster for the right to read it" if self.denied else "try again"
        return Finding("", Severity.SKIPPED, reason, fix, could_not_read=True)


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
    """Only those of HyperPod and of node problems."""
    taints: tuple[Taint, ...]
    cordoned: bool
    capacity: Amounts
    allocatable: Amounts
    conditions: tuple[Condition, ...]
    os_image: str

    @property
    def instance_type(self) -> str:
        """The type from its label, without HyperPod's prefix; empty if it has no label."""
        name = self.labels.get("node.kubernetes.io/instance-type") or self.labels.get(
            "beta.kubernetes.io/instance-type", ""
        )
        return plain_type(name)

    @property
    def zone(self) -> str:
        """The name of the availability zone, else its id; names differ per account, ids do not."""
        return self.labels.get(ZONE) or self.labels.get("topology.k8s.aws/zone-id", "")

    @property
    def ready(self) -> bool:
        return any(c.type == "Ready" and c.status == "True" for c in self.conditions)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that has not ended."""

    namespace: str
    name: str
    node: str
    """Empty while it waits for a node."""
    requests: Amounts
    owner: str
    """Name for people: the job it belongs to, else its owner, else its own name."""
    priority: int
    waiting: str
    """Why it does not run: `ImagePullBackOff`, `Unschedulable`; empty when it runs."""
    images: tuple[str, ...]
    """The images of its containers while it waits, else empty."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A DaemonSet or Deployment."""

    namespace: str
    name: str
    labels: Mapping[str, str]
    """The labels of its pods."""
    images: tuple[str, ...]
    wanted: int
    available: int


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
    """The zones in which the volume can be used; empty means any."""
    local: bool = False
    """On a disk of one node."""
    terminating: bool = False
    """It is being deleted."""


@dataclass(frozen=True)
class Quota:
    name: str
    hard: Amounts
    used: Amounts
    has_scopes: bool = False
    """Whether only some pods are counted."""


@dataclass(frozen=True)
class Namespace:
    """The namespace of the job."""

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


@dataclass(frozen=True)
class FlavorQuota:
    """A ClusterQueue's quota of one resource in one flavor, in thousandths."""

    flavor: str
    resource: str
    nominal: int
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
    """One permission that the plan needs."""

    verb: str
    group: str
    resource: str
    namespace: str
    allowed: bool | None = None
    """None if the review failed."""

    @property
    def kind(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def text(self) -> str:
        return f"{self.verb} {self.kind}" + (f" in {self.namespace}" if self.namespace else "")


@dataclass(frozen=True)
class Trial:
    """The API server's answer to an object that is sent as a dry run; nothing is created."""

    what: str
    status: int
    """HTTP status; 0 without an answer."""
    message: str

    @property
    def accepted(self) -> bool:
        return self.status in (200, 201)


@dataclass(frozen=True)
class Image:
    """The registry's facts about the image."""

    uri: str
    registry: str
    region: str
    """ECR's region; empty for other registries."""
    found: bool
    digest: str = ""


@dataclass(frozen=True)
class Snapshot:
    """A cluster at one moment. Every part except the server's version may be `MissingData`."""

    server: str
    version: str
    region: str
    """The AWS region, from the nodes or the address; empty if it is not known."""
    groups: Mapping[str, tuple[str, ...]] | MissingData
    """API group -> served versions, the preferred one first."""
    resources: Mapping[str, tuple[str, ...]]
    """`group/version` -> resources, for the groups that matter for jobs."""
    permissions: tuple[Permission, ...]
    nodes: tuple[Node, ...] | MissingData
    pods: tuple[Pod, ...] | MissingData
    daemons: tuple[Workload, ...] | MissingData
    deployments: tuple[Workload, ...] | MissingData
    namespace: Namespace | MissingData
    quotas: tuple[Quota, ...] | MissingData
    volume: Volume | MissingData | None
    """None: there is no such claim."""
    drivers: frozenset[str] | MissingData
    """Names of the CSI drivers."""
    secrets: Mapping[str, bool | MissingData] | MissingData
    """Name of a Secret that pods refer to -> whether it exists."""
    queues: tuple[Queue, ...] | MissingData
    cluster_queues: tuple[ClusterQueue, ...] | MissingData
    flavors: tuple[Flavor, ...] | MissingData
    hooks: frozenset[str] | MissingData
    """`resource.group` of everything that a controller's own webhook must admit."""
    job_trial: Trial | MissingData
    pod_trial: Trial | MissingData
    image: Image | MissingData

    @property
    def may_grow(self) -> bool:
        """Return whether Karpenter runs here. Which nodes its NodePools may add is not checked."""
        return not isinstance(self.groups, MissingData) and "karpenter.sh" in self.groups

    def has_driver(self, word: str) -> bool:
        """Return whether a driver of Dynamic Resource Allocation with this name or image is installed.

        The devices that it publishes (ResourceSlices) are not checked.
        """
        daemons = () if isinstance(self.daemons, MissingData) else self.daemons
        return any(word in text for daemon in daemons for text in (daemon.name, *daemon.images))
