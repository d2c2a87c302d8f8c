"""A job as one value: everything that determines its manifests, and nothing else.

    Config + JobRequest + NodeRoom ──planning──> JobPlan ──kinds──> manifests

A plan is printed by a dry run. Its record is an annotation of the job, by which a job that is sent again is
compared with the one that exists. It holds the names of secrets, never their values.
"""

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

from trainyard.errors import DamagedFileError
from trainyard.run.record_models import validate_record

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


@dataclass(frozen=True)
class JobPlan:
    """One job."""

    # A key of a later version may change the job.
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012
    name: str
    namespace: str
    kind: str
    """As in `cluster.kind`, never auto."""
    image: str
    program: Program
    nodes: int
    """Number of pods, one per node."""
    processes_per_node: int
    resources: PodResources
    instance_type: str = ""
    """The value of the nodes' label, with `ml.` on nodes of HyperPod; empty means any node."""
    on_hyperpod: bool = False
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that the nodes must have, beside that of the instance type."""
    zone: str | None = None
    """The zone of all pods that EFA joins; empty: any one zone; null: no zone is required."""
    network: str = "auto"
    """As in `compute.network`."""
    environment: Mapping[str, str] = field(default_factory=dict)
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
    workload_priority: str = ""
    """Kueue's WorkloadPriorityClass."""
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

    @property
    def run_directory(self) -> str:
        # Namespaces have volumes of their own, which often lead to one file system.
        return f"{self.mount_path or SCRATCH}/{self.namespace}/{self.name}"

    @property
    def several_nodes(self) -> bool:
        return self.nodes > 1

    @property
    def is_joined_by_efa(self) -> bool:
        return self.several_nodes and self.resources.efa > 0

    def to_json(self) -> dict[str, Any]:
        """Plain data that `plan_from_json` reads back as an equal plan."""
        return {"schema": SCHEMA, **asdict(self)}

    def record(self) -> dict[str, Any]:
        """The data with the SHA-256 of each file instead of its text, which the job's ConfigMap has."""
        found = self.to_json()
        files = self.program.files.items()
        found["program"]["files"] = {name: sha256(text.encode()).hexdigest() for name, text in files}
        return found


def plan_from_json(value: object) -> JobPlan:
    """Return the plan that `to_json` wrote. Raises DamagedFileError for anything else."""
    try:
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            raise ValueError(f"schema {SCHEMA} is expected")
        return validate_record(JobPlan, {key: part for key, part in value.items() if key != "schema"})
    except ValueError as error:
        raise DamagedFileError(f"the plan in the job's annotations cannot be read: {error}") from None
