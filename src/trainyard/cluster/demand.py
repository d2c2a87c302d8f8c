"""The demand: the shape of the job for which a cluster is judged. A plain value.

Values that are left open are not guessed: without an instance type every node with GPUs is considered, and
without `gpus_per_node` a complete node.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from trainyard.cluster.needed_apis import ServedKind, serves
from trainyard.config.cluster import ClusterConfig
from trainyard.plan.instances import HYPERPOD
from trainyard.run.suggested_commands import DEFAULT_CLUSTER, ClusterTarget

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
    """EC2's name, or HyperPod's; empty allows any type."""
    kind: str = ""
    """The name of one of `kinds`; auto, or none, is the first that the cluster serves."""
    kinds: tuple[ServedKind, ...] = ()
    """Every kind of job that is known, in the order in which auto tries them."""
    namespace: str = ""
    queue: str = ""
    """A LocalQueue of Kueue in the namespace."""
    image: str = ""
    claim: str = ""
    """The PersistentVolumeClaim for checkpoints."""
    mount_path: str = ""
    """The folder for checkpoints in a pod."""
    priority_class: str = ""
    secret: str = ""
    """A Secret of the namespace that pods refer to."""
    token_secret: str = ""
    """`NAME` or `NAME:KEY` of a Secret with a token for the Hugging Face Hub."""
    service_account: str = ""
    """The ServiceAccount of the pods; empty for the namespace's default."""
    tolerations: tuple[str, ...] = ()
    """Keys of further taints that the job tolerates."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that the nodes must have."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """The fragment of a pod template that is merged into every pod."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the job's objects, beside ours."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    target: ClusterTarget = DEFAULT_CLUSTER
    """The options that named the cluster, for the commands in remedies."""

    def with_settings(self, settings: ClusterConfig, *, namespace: str = "") -> Self:
        """Return the demand with the configuration's values where it has none of its own.

        `namespace` is that of the kubeconfig's context.
        """
        spec = settings.pod.template.get("spec") or {}
        return replace(
            self,
            kind=self.kind or settings.kind,
            namespace=self.namespace or settings.namespace or namespace or "default",
            queue=self.queue or settings.queue or "",
            image=self.image or settings.image or "",
            claim=self.claim or settings.volume.claim or "",
            mount_path=self.mount_path or settings.volume.mount_path or "",
            priority_class=self.priority_class or settings.priority_class or "",
            secret=self.secret or settings.secret or "",
            service_account=settings.pod.service_account or "",
            node_selector={**settings.pod.node_selector, **(spec.get("nodeSelector") or {})},
            template=settings.pod.template,
            labels=settings.labels,
            annotations=settings.annotations,
        )

    @property
    def secrets(self) -> tuple[str, ...]:
        """The Secrets without which no container of a pod starts."""
        return tuple(dict.fromkeys(filter(None, (self.secret, self.token_secret.partition(":")[0]))))

    def tolerates(self, taint: str) -> bool:
        """Return whether the pods tolerate taints with this key, by the keys of their tolerations."""
        given = (self.template.get("spec") or {}).get("tolerations") or ()
        # Without a key all taints are tolerated.
        return {taint, ""} & {*TOLERATED, *self.tolerations, *(each.get("key", "") for each in given)} != set()

    @property
    def shape(self) -> str:
        """Text for people: `4 × p5.48xlarge`, `2 nodes with 8 GPUs`."""
        if self.instance_type:
            return f"{self.nodes} × {plain_type(self.instance_type)}"
        each = {None: "GPUs", 0: "no GPU", 1: "1 GPU"}.get(self.gpus_per_node, f"{self.gpus_per_node} GPUs")
        return f"{self.nodes} {'node' if self.nodes == 1 else 'nodes'} with {each}"


def plain_type(name: str) -> str:
    """An instance type without HyperPod's prefix."""
    return name.removeprefix(HYPERPOD)


def choose_kind(demand: Demand, resources: Mapping[str, tuple[str, ...]]) -> ServedKind:
    """Return the demanded kind; for auto the first that is served, else the first of all."""
    is_open = demand.kind in ("", "auto")
    assert is_open or demand.kind in [kind.name for kind in demand.kinds]
    for kind in demand.kinds:
        if demand.kind == kind.name or (is_open and serves(kind.api, resources)):
            return kind
    return demand.kinds[0]
