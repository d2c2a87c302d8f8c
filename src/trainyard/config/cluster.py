"""The section `cluster`: settings of Kubernetes jobs."""

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from trainyard.config.registries import JOB_KIND_CHOICES
from trainyard.config.section import Name, OneOf, Section

LONGEST_DNS_NAME = 253
DNS_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
"""A DNS-1123 subdomain, of at most LONGEST_DNS_NAME characters: the name of most objects of Kubernetes."""
DnsName = Annotated[str, StringConstraints(pattern=DNS_NAME, max_length=LONGEST_DNS_NAME)]
Size = Annotated[
    str, StringConstraints(pattern=r"^[1-9]\d{0,9}(Mi|Gi|Ti|Pi|M|G|T|P)$"), Field(examples=["1200Gi"])
]


class ClusterVolumeConfig(Section):
    """The claim that checkpoints go to."""

    claim: DnsName | None = None
    """PersistentVolumeClaim in the namespace."""
    mount_path: Name | None = None
    """Where the volume is mounted in a pod."""
    storage_class: DnsName | None = None
    """StorageClass with which the claim is created; null: no claim is created."""
    size: Size = "1200Gi"
    """Size of a new claim; FSx for Lustre starts at 1200Gi."""


class ClusterPodConfig(Section):
    """Settings of the pods of a job."""

    python: Name = "python"
    """The interpreter in the image: a name on its PATH, or a path."""
    directory: Name | None = None
    """Folder of this repository in the image; null: its working directory."""
    cpu: Annotated[int, Field(gt=0, le=4096)] | None = None
    """Processors per pod; null: the GPUs' share of the node."""
    memory: Size | None = None
    """Main memory per pod; null: the GPUs' share of the node."""
    shared_memory: Size | None = None
    """Size of /dev/shm, part of the pod's memory; null: a quarter of it."""
    run_as_user: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = 1000
    """User and group id; 0 is root, null: the image's own user."""
    service_account: DnsName | None = None
    """ServiceAccount of the pods."""
    grace_seconds: Annotated[int, Field(ge=30, le=86400)] = 300
    """Seconds from SIGTERM until a pod is killed; must be longer than the slowest step and a save."""
    restarts: Annotated[int, Field(ge=0, le=100)] = 3
    """How often the job is restarted after failures without a new checkpoint."""
    node_selector: Annotated[dict[Name, str], Field(max_length=64)] = Field(default_factory=dict)
    """Labels that the nodes must have."""
    hyperpodrun: bool = False
    """The image has `hyperpodrun`, which kind `hyperpod` starts in place of torchrun."""
    ray_version: Annotated[str, StringConstraints(pattern=r"^\d+\.\d+(\.\d+)?$")] | None = None
    """Version of Ray in the image, by which KubeRay chooses its probes."""
    topology: Name | None = None
    """Node label that the pods of a queued job should share (Kueue); if EFA joins them, they must."""
    template: Annotated[dict[Name, Any], Field(max_length=2)] = Field(default_factory=dict)
    """A fragment of a pod template that is merged into every pod; its container `main` trains."""


class ClusterConfig(Section):
    """Jobs on Kubernetes: kind, namespace, queue, image; options of scripts override these."""

    kind: Annotated[str, OneOf(JOB_KIND_CHOICES)] = "auto"
    namespace: DnsName | None = None
    """null: that of the kubeconfig's context, or default."""
    queue: DnsName | None = None
    """LocalQueue of Kueue."""
    cluster_queue: DnsName | None = None
    """ClusterQueue that a LocalQueue is created for."""
    priority_class: DnsName | None = None
    """PriorityClass of the pods."""
    image: Name | None = None
    """Image that the jobs run."""
    secret: DnsName | None = None
    """Secret in the namespace whose keys become environment variables of the pods."""
    labels: Annotated[dict[Name, str], Field(max_length=64)] = Field(default_factory=dict)
    """Labels of the job and of the objects that it needs."""
    annotations: Annotated[dict[Name, str], Field(max_length=64)] = Field(default_factory=dict)
    """Their annotations."""
    pod: ClusterPodConfig = Field(default_factory=ClusterPodConfig)
    """Settings of the pods of a job."""
    volume: ClusterVolumeConfig = Field(default_factory=ClusterVolumeConfig)
    """The claim that checkpoints go to."""
