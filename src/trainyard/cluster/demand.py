"""The demand: the shape of the job for which a cluster is judged. A plain value.

Values that are left open are not guessed: without an instance type every node with GPUs is considered, and
without `gpus_per_node` a complete node.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.cluster.needed_apis import ServedKind, serves
from trainyard.config.cluster import ClusterConfig
from trainyard.plan.instances import HYPERPOD
from trainyard.run.suggested_commands import DEFAULT_CLUSTER, ClusterTarget, cluster_target

GPU = "nvidia.com/gpu"
EFA = "vpc.amazonaws.com/efa"
GPU_DRIVER, EFA_DRIVER = "nvidia-dra-driver", "dranet"
"""Names of the drivers of Dynamic Resource Allocation that offer GPUs and EFA without these resources."""
TOLERATED = (GPU, EFA)
"""Taints that every job here tolerates. They keep other pods away from such nodes."""


@dataclass(frozen=True)
class Demand:
    """The resources that a job needs from a cluster."""

    nodes: int = 1
    gpus_per_node: int | None = None
    """None: all GPUs of a node of this type; 0: no GPU is needed."""
    instance_type: str = ""
    """EC2's name, without HyperPod's prefix; empty allows any type."""
    kind: str = "auto"
    """The name of one of `kinds`; auto uses the first that the cluster serves."""
    kinds: tuple[ServedKind, ...] = ()
    """Every kind of job that is known, in the order in which auto tries them."""
    namespace: str = "default"
    queue: str = ""
    """A LocalQueue of Kueue in the namespace."""
    image: str = ""
    claim: str = ""
    """The PersistentVolumeClaim for checkpoints."""
    checkpoint_path: str = ""
    """The folder for checkpoints in a pod."""
    priority_class: str = ""
    secret: str = ""
    """A Secret of the namespace that pods refer to."""
    token_secret: str = ""
    """The Secret with a token for the Hugging Face Hub, without the name of its key."""
    service_account: str = ""
    """The ServiceAccount of the pods; empty for the namespace's default."""
    tolerations: tuple[str, ...] = ()
    """Keys of further taints that the job tolerates."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that the nodes must have."""
    target: ClusterTarget = DEFAULT_CLUSTER
    """The options that named the cluster, for the commands in remedies."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The Secrets without which no container of a pod starts."""
        return tuple(dict.fromkeys(filter(None, (self.secret, self.token_secret))))

    @property
    def tolerated(self) -> tuple[str, ...]:
        return (*TOLERATED, *self.tolerations)

    @property
    def shape(self) -> str:
        """Text for people: `4 × p5.48xlarge`, `2 nodes with 8 GPUs`."""
        if self.instance_type:
            return f"{self.nodes} × {self.instance_type}"
        each = {None: "GPUs", 0: "no GPU", 1: "1 GPU"}.get(self.gpus_per_node, f"{self.gpus_per_node} GPUs")
        return f"{self.nodes} {'node' if self.nodes == 1 else 'nodes'} with {each}"


def demand_of(
    given: Mapping[str, Any],
    settings: ClusterConfig,
    kinds: Iterable[ServedKind],
    *,
    namespace: str = "",
) -> Demand:
    """Return the demand of a command line (`given`) and the configuration that it overrides.

    `namespace` is that of the context. `given` may lack `hf_token_secret`.
    """
    return Demand(
        nodes=given["num_nodes"],
        gpus_per_node=given["gpu_per_node"],
        instance_type=plain_type(given["instance_type"]),
        kind=given["kind"] or settings.kind,
        kinds=tuple(kinds),
        namespace=given["namespace"] or settings.namespace or namespace or "default",
        queue=given["queue"] or settings.queue or "",
        image=given["image_uri"] or settings.image or "",
        claim=given["volume"] or settings.volume.claim or "",
        checkpoint_path=given["checkpoint_path"] or settings.volume.mount_path or "",
        priority_class=given["priority_class"] or settings.priority_class or "",
        secret=given["secret"] or settings.secret or "",
        token_secret=given.get("hf_token_secret", "").partition(":")[0],
        service_account=settings.pod.service_account or "",
        tolerations=tuple(given["tolerate"]),
        node_selector=settings.pod.node_selector,
        target=cluster_target(given),
    )


def plain_type(name: str) -> str:
    """An instance type without HyperPod's prefix."""
    return name.removeprefix(HYPERPOD)


def choose_kind(
    demand: Demand, resources: Mapping[str, tuple[str, ...]], undiscovered: Container[str] = ()
) -> ServedKind:
    """Return the demanded kind; for auto the first that is or may be served, else the first of all."""
    assert demand.kind in ("auto", *(kind.name for kind in demand.kinds))
    for kind in demand.kinds:
        possible = serves(kind.api, resources) or kind.api.group_version in undiscovered
        if demand.kind == kind.name or (demand.kind == "auto" and possible):
            return kind
    return demand.kinds[0]
