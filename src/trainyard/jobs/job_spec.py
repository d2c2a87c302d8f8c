"""A job as one value: what is asked for, then what is planned.

    flags, YAML ──> JobSpec ──preflight, planning──> JobSpec ──kinds──> manifests
                    as asked for                     every value decided

The preflight judges a cluster for it, and values that are left open are not guessed there: without an
instance type every node with GPUs is considered, and without `gpus_per_node` a complete node. The planned job
is printed by a dry run. Its record is an annotation of the job, by which a job that is sent again is compared
with the one that exists. It holds the names of secrets, never their values.
"""

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Any, Self

from pydantic.json_schema import SkipJsonSchema

from trainyard.config.cluster import ClusterConfig
from trainyard.plan.instances import EFA, GPU, NodeRoom, plain_type
from trainyard.run.record_models import validate_record
from trainyard.run.suggested_commands import DEFAULT_CLUSTER, ClusterTarget

SCHEMA = 1
FILES_DIRECTORY = "/etc/trainyard"
"""The folder in a pod where the files of a job, such as its configuration, are mounted."""
SCRATCH = "/scratch"
"""A folder of the node that is empty when a pod starts and removed with it; for caches only."""


@dataclass(frozen=True)
class PodResources:
    """The requests of one pod; its limits are the same."""

    cpu_millis: int
    memory_mib: int
    gpus: int = 0
    efa: int = 0
    """Interfaces of the Elastic Fabric Adapter."""
    hugepages_mib: int = 0
    """Pages of 2 MiB."""
    shared_memory_mib: int = 64
    """The size limit of /dev/shm; it counts as memory."""

    @property
    def of_machine(self) -> dict[str, int]:
        """The requests by which the pod's share of its machine is priced."""
        return {"gpus": self.gpus, "cpu_millis": self.cpu_millis, "memory_mib": self.memory_mib}


@dataclass(frozen=True)
class Program:
    """The program that the pods run."""

    name: str
    command: tuple[str, ...]
    once: bool = False
    """Whether it is started once, as programs of Ray are; otherwise it is started in every pod."""
    directory: str = ""
    """Working directory; empty means the image's own."""
    python: str = "python"
    """The interpreter in the image."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Name -> text of the files in FILES_DIRECTORY."""
    nccl_log: str = ""
    """File on the shared volume for NCCL's log in each process that a program of Ray starts; %h is the host,
    %p the process. Empty if the program starts none on other nodes."""

    @property
    def keeps_run(self) -> bool:
        """Return whether `trainyard pod` runs it, which stores, proves, and knows the exit codes of pods."""
        return ("trainyard", "pod") in itertools.pairwise(self.command)


@dataclass(frozen=True)
class SecretVariable:
    """A variable of the environment whose value is a key of a Secret."""

    name: str
    secret: str
    key: str


def token_variable(text: str) -> tuple[SecretVariable, ...]:
    """Return the variable with a token for the Hugging Face Hub, from `NAME` or `NAME:KEY` of a Secret."""
    name, _, key = text.partition(":")
    return (SecretVariable("HF_TOKEN", name, key or "token"),) if text else ()


# What `record` leaves out: it serves the planning, or other fields have it then.
_NOT_RECORDED = ("gpus_per_node", "room", "creator", "target")
# The fields without which a record is not that of a planned job.
_PLANNED = ("name", "namespace", "kind", "image", "program", "nodes", "processes_per_node", "resources")


@dataclass(frozen=True)
class JobSpec:
    """One job."""

    # A key of a later version may change the job. The schema is that of a planned job, which has all values.
    __pydantic_config__ = {  # noqa: RUF012
        "extra": "forbid",
        "title": "JobPlan",
        "json_schema_extra": {"required": list(_PLANNED)},
    }
    name: str = ""
    """Empty until it is planned: derived from the model's name."""
    namespace: str = ""
    kind: str = ""
    """As in `cluster.kind`; auto, or none, until the first kind is chosen that the cluster serves."""
    image: str = ""
    program: Program = Program("", ())
    """Until it is planned only the user's own command; empty means that of the recipe."""
    nodes: int = 1
    """Number of pods, one per node."""
    processes_per_node: int = 0
    """0 until it is planned: one per GPU."""
    resources: PodResources = PodResources(0, 0)
    instance_type: str = ""
    """EC2's name or HyperPod's as asked for; the value of the nodes' label once planned; empty: any node."""
    on_hyperpod: bool = False
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that the nodes must have, beside that of the instance type."""
    zone: str | None = ""
    """The zone of all pods that EFA joins; empty: any one zone; null: no zone is required."""
    network: str = "auto"
    """As in `compute.network`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The user's variables, and those of the network once planned."""
    secrets: tuple[SecretVariable, ...] = ()
    secret_environment: str = ""
    """A Secret whose keys all become variables; empty means none."""
    claim: str = ""
    """The PersistentVolumeClaim for checkpoints; empty means none."""
    shared_claim: bool = False
    """Others write to the claim too, as to a file system of FSx."""
    mount_path: str = ""
    queue: str = ""
    """Kueue's LocalQueue."""
    priority_class: str = ""
    """PriorityClass of the pods."""
    topology: str = ""
    """The node label whose value Kueue makes equal for all pods: always if EFA joins them, else if it can."""
    service_account: str = ""
    tolerations: tuple[str, ...] = ()
    """Keys of tolerated taints."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """As in `cluster.pod.template`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the job's objects, beside ours."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    run_as_user: int | None = None
    grace_seconds: int = 300
    restarts: int = 0
    """How many times the operator may start the complete job again."""
    auto_retry: int = 0
    """How many times the job may be submitted again after a failure that a retry can recover from."""
    ray_version: str = ""
    """Ray's version in the image, which determines the probes of its pods."""
    ray_cluster: str = ""
    """The RayCluster that the job runs on, if it is not the job's own."""
    run_id: str = ""
    """The id of the run, equal over restarts and retries of the job; empty: the name."""
    owner: str = ""
    """Whose run it is: NAMESPACE/CREATOR/COMMAND, the last one as a digest. `run.json` has it too."""
    provenance: Mapping[str, str] = field(default_factory=dict)
    """commit, dirty, lock-sha256, config-sha256, version; unknown facts are absent."""
    manifest: str = ""
    """The SHA-256 of the objects of somebody else's manifest; empty for a job that Trainyard made itself."""
    gpus_per_node: SkipJsonSchema[int | None] = None
    """None: all GPUs of a node of this type; 0: no GPU is needed."""
    room: SkipJsonSchema[NodeRoom | None] = field(default=None, compare=False)
    """The resources of the cluster's nodes; None if no cluster was queried."""
    creator: SkipJsonSchema[str] = field(default="", compare=False)
    """Who sends it, by the API server; empty if that is not known."""
    target: SkipJsonSchema[ClusterTarget] = field(default=DEFAULT_CLUSTER, compare=False)
    """The options that named the cluster, for the commands in fixes."""

    def with_settings(self, settings: ClusterConfig, *, namespace: str = "") -> Self:
        """Return the job with the configuration's values where it has none of its own.

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
            secret_environment=self.secret_environment or settings.secret or "",
            service_account=settings.pod.service_account or "",
            node_selector={**settings.pod.node_selector, **(spec.get("nodeSelector") or {})},
            template=settings.pod.template,
            labels=settings.labels,
            annotations=settings.annotations,
        )

    @property
    def secret_names(self) -> tuple[str, ...]:
        """The Secrets without which no container of a pod starts."""
        names = (self.secret_environment, *(each.secret for each in self.secrets))
        return tuple(dict.fromkeys(filter(None, names)))

    @property
    def tolerated_taints(self) -> tuple[str, ...]:
        """The taints that the pods tolerate. Those of GPUs and EFA keep only other pods away."""
        return tuple(dict.fromkeys((GPU, EFA, *self.tolerations)))

    def tolerates(self, taint: str) -> bool:
        """Return whether the pods tolerate taints with this key, by the keys of their tolerations."""
        given = (self.template.get("spec") or {}).get("tolerations") or ()
        # Without a key all taints are tolerated.
        return {taint, ""} & {*self.tolerated_taints, *(each.get("key", "") for each in given)} != set()

    @property
    def shape(self) -> str:
        """Text for people: `4 × p5.48xlarge`, `2 nodes with 8 GPUs`."""
        if self.instance_type:
            return f"{self.nodes} × {plain_type(self.instance_type)}"
        each = {None: "GPUs", 0: "no GPU", 1: "1 GPU"}.get(self.gpus_per_node, f"{self.gpus_per_node} GPUs")
        return f"{self.nodes} {'node' if self.nodes == 1 else 'nodes'} with {each}"

    @property
    def run_directory(self) -> str:
        # Namespaces have volumes of their own, which often lead to one file system.
        return f"{self.mount_path or SCRATCH}/{self.namespace}/{self.name}"

    @property
    def files_name(self) -> str:
        """The ConfigMap with the program's files."""
        return f"{self.name}-files"

    @property
    def is_joined_by_efa(self) -> bool:
        return self.nodes > 1 and self.resources.efa > 0

    def to_json(self) -> dict[str, Any]:
        """Plain data that `spec_from_json` reads back as an equal job."""
        kept = {key: value for key, value in asdict(self).items() if key not in _NOT_RECORDED}
        return {"schema": SCHEMA, **kept}

    def record(self) -> dict[str, Any]:
        """The data with the SHA-256 of each file instead of its text, which the job's ConfigMap has."""
        found = self.to_json()
        files = self.program.files.items()
        found["program"]["files"] = {name: sha256(text.encode()).hexdigest() for name, text in files}
        return found


def spec_from_json(value: object) -> JobSpec:
    """Return the job that `to_json` wrote. Raises ValueError for anything else."""
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise ValueError(f"schema {SCHEMA} is expected")
    if lacking := [key for key in _PLANNED if key not in value]:
        raise ValueError(f"{lacking[0]} is missing")
    found = validate_record(JobSpec, {key: part for key, part in value.items() if key != "schema"})
    return replace(found, gpus_per_node=found.resources.gpus)
