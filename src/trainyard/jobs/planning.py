"""Plan a job: check everything that can be known before anything is sent, and name all problems at once.

Config + JobRequest + NodeRoom ──plan_job──> JobPlan, or a ConfigError with every problem
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard import __version__
from trainyard.config.load import config_sha256
from trainyard.config.mesh import require_processes
from trainyard.config.schema import Config
from trainyard.errors import ConfigError
from trainyard.jobs.job_plan import JobPlan, PodResources, Program, SecretVariable
from trainyard.jobs.kinds import KINDS
from trainyard.jobs.pod_share import pod_resources
from trainyard.jobs.programs import own_command
from trainyard.jobs.programs.trainyard_trainer import settled_config, trainer_program, workspace_of
from trainyard.plan.cost import Rented
from trainyard.plan.device import gpu_of
from trainyard.plan.environment.network_environment import network_environment
from trainyard.plan.environment.surroundings import Surroundings, instance_called
from trainyard.plan.instances import find_instance
from trainyard.plan.node_room import NodeRoom, room_of_type
from trainyard.plan.training_plan import plan_training
from trainyard.run.whole_files import sha256_of_file

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
"""DNS-1035: what operators make Services of."""
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DEFAULT_KEY = "token"
_RESERVED = re.compile(r"PET_.*|MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GIB = 2**30


@dataclass(frozen=True)
class JobRequest:
    """What is asked for beside the configuration: the command line."""

    name: str = ""
    """Empty: made from the model's name."""
    namespace: str = "default"
    kind: str = "pytorchjob"
    image: str = ""
    nodes: int = 1
    gpus_per_node: int | None = None
    """None: all of a node."""
    processes_per_node: int | None = None
    """None: one a GPU."""
    instance_type: str = ""
    queue: str = ""
    priority_class: str = ""
    secret: str = ""
    token_secret: str = ""
    """`NAME` or `NAME:KEY` of a Secret with a token for the Hugging Face Hub."""
    claim: str = ""
    mount_path: str = ""
    tolerations: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the user."""
    command: tuple[str, ...] = ()
    """The user's own program; empty: the trainer."""
    ray_cluster: str = ""
    auto_retry: int = 0
    provenance: Mapping[str, str] = field(default_factory=dict)
    room: NodeRoom | None = None
    """What the nodes of the cluster have; None where none was looked at."""


def plan_job(config: Config, request: JobRequest) -> JobPlan:
    """The plan. Raises ConfigError with every problem, a line each."""
    room = request.room or room_of_type(request.instance_type)
    gpus = _gpus(config, request, room)
    settled = _with_volume(config, request)
    processes = request.processes_per_node or max(1, gpus)
    plan = _drafted(settled, request, room, gpus=gpus, processes=processes)
    problems = [*_problems(settled, request, plan, room), *_training_problems(settled, request, plan)]
    if problems:
        count = len(problems)
        raise ConfigError(
            "\n".join([*problems, f"{count} error{'' if count == 1 else 's'}. Nothing was sent."])
        )
    return plan


def warnings_of(plan: JobPlan) -> list[str]:
    """What is allowed and may not be meant."""
    found = []
    if "@sha256:" not in plan.image:
        found.append(
            f"{plan.image}: named by a tag, which may be moved: pods that start later may run another image. "
            "Name the image with its digest (@sha256:…)"
        )
    if not plan.claim and plan.program.name != own_command.NAME:
        found.append(
            "no volume: checkpoints are on the pod's own disk, and gone with it. Name a claim with --volume"
        )
    return found


def _drafted(
    config: Config, request: JobRequest, room: NodeRoom | None, *, gpus: int, processes: int
) -> JobPlan:
    """The plan, whether or not it can be sent."""
    cluster, pod = config.cluster, config.cluster.pod
    name = request.name or name_from(config.model.name)
    wants_efa = request.nodes > 1 and gpus > 0 and config.compute.network != "tcp"
    resources = pod_resources(room, pod, gpus=gpus, efa=wants_efa)
    settled = settled_config(config, efa=resources.efa > 0)
    label = (room.instance_type if room else "") or request.instance_type
    return JobPlan(
        name=name,
        namespace=request.namespace,
        kind=request.kind,
        image=request.image,
        program=_program(settled, request, name, processes),
        nodes=request.nodes,
        processes_per_node=processes,
        resources=resources,
        instance_type=label,
        on_hyperpod=bool(room and room.on_hyperpod) or label.startswith("ml."),
        network=config.compute.network,
        environment=_environment(config, request, resources, label),
        secrets=_secrets(request),
        secret_environment=request.secret or cluster.secret or "",
        claim=cluster.volume.claim or "",
        mount_path=workspace_of(config) if cluster.volume.claim else "",
        queue=request.queue,
        priority_class=request.priority_class or cluster.priority_class or "",
        topology=pod.topology or "",
        service_account=pod.service_account or "",
        tolerations=request.tolerations,
        run_as_user=pod.run_as_user,
        grace_seconds=pod.grace_seconds,
        restarts=pod.restarts,
        auto_retry=request.auto_retry,
        ray_version=pod.ray_version or "",
        ray_cluster=request.ray_cluster,
        provenance={**request.provenance, "config-sha256": config_sha256(settled)},
    )


def name_from(text: str) -> str:
    """A name for a job, made from the name of a model."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"job-{plain}".strip("-"))[:40].rstrip("-")


def _gpus(config: Config, request: JobRequest, room: NodeRoom | None) -> int:
    if request.gpus_per_node is not None:
        return request.gpus_per_node
    return 0 if room is None or config.model.device == "cpu" else room.gpus


def _with_volume(config: Config, request: JobRequest) -> Config:
    """`config` with the volume that the command line names."""
    volume = config.cluster.volume
    changes = {
        "claim": request.claim or volume.claim,
        "mount_path": request.mount_path or volume.mount_path,
    }
    cluster = config.cluster.model_copy(update={"volume": volume.model_copy(update=changes)})
    return config.model_copy(update={"cluster": cluster})


def _program(config: Config, request: JobRequest, name: str, processes: int) -> Program:
    if request.command:
        return own_command.own_program(request.command, config.cluster.pod, kind=request.kind)
    return trainer_program(config, name, processes=processes)


def _environment(config: Config, request: JobRequest, resources: PodResources, label: str) -> dict[str, str]:
    place = Surroundings(
        instance=instance_called(label),
        nodes=request.nodes,
        efa=resources.efa,
        gpus=resources.gpus,
        network=config.compute.network,
    )
    found = network_environment(place)
    if not request.command:
        found.pop("NCCL_DEBUG", None)  # the trainer sets it, and keeps the log in the run directory
    return {**found, **request.environment}


def _secrets(request: JobRequest) -> tuple[SecretVariable, ...]:
    if not request.token_secret:
        return ()
    name, _, key = request.token_secret.partition(":")
    return (SecretVariable("HF_TOKEN", name, key or _DEFAULT_KEY),)


def _problems(config: Config, request: JobRequest, plan: JobPlan, room: NodeRoom | None) -> Iterator[str]:
    kind = KINDS[plan.kind]
    if not _LABEL.fullmatch(plan.name) or len(plan.name) > kind.LONGEST_NAME:
        yield (
            f"--job-name {plan.name[:80]}: the name of a {plan.kind} is of lower-case letters, digits and dashes, "
            f"begins with a letter, and has at most {kind.LONGEST_NAME} characters"
        )
    if not _NAMESPACE.fullmatch(plan.namespace):
        yield f"--namespace {plan.namespace[:80]}: no name of a namespace"
    if not plan.image:
        yield "no image: name it with --image-uri, or set cluster.image"
    yield from _room_problems(config, request, plan, room)
    yield from _storage_problems(config, plan)
    yield from _network_problems(plan, room)
    for name in request.environment:
        if not _VARIABLE.fullmatch(name) or _RESERVED.fullmatch(name):
            yield f"--env {name[:80]}: " + (
                "set by the operator of the job" if _RESERVED.fullmatch(name) else "no name of a variable"
            )
    yield from kind.problems(plan)


def _room_problems(
    config: Config, request: JobRequest, plan: JobPlan, room: NodeRoom | None
) -> Iterator[str]:
    if request.instance_type and room is None:
        try:
            find_instance(request.instance_type)
        except ConfigError as error:
            yield f"--instance-type {error}"
    pod = config.cluster.pod
    if room is None and not request.instance_type and not (pod.cpu and pod.memory):
        yield (
            "nothing says how much processor and memory a pod may have: name --instance-type, or set "
            "cluster.pod.cpu and cluster.pod.memory"
        )
    if room is None:
        return
    have = room.instance_type or request.instance_type or "the node"
    for what, wanted, there in (
        ("--gpu-per-node", plan.resources.gpus, room.gpus),
        ("cluster.pod.cpu", plan.resources.cpu_millis // 1000, room.cpu_millis // 1000),
        ("cluster.pod.memory", plan.resources.memory_mib, room.memory_mib),
    ):
        if wanted > there:
            unit = " MiB" if what.endswith("memory") else ""
            yield f"{what}: {wanted:,}{unit} are more than {have} has for a pod, {there:,}{unit}"


def _storage_problems(config: Config, plan: JobPlan) -> Iterator[str]:
    if plan.several_nodes and not plan.claim and plan.program.name != own_command.NAME:
        yield (
            f"{plan.nodes} nodes need a volume that all of them share for checkpoints: name its claim with "
            "--volume, or set cluster.volume.claim"
        )
    if plan.claim and not plan.mount_path.startswith("/"):
        yield f"cluster.volume.mount_path: {plan.mount_path!r} does not begin with /"
    store = config.artifacts.store or ""
    if store.startswith("file:") and not (plan.claim and store.startswith(f"file://{plan.mount_path}/")):
        yield f"artifacts.store: {store} is a folder of the pod, gone with it; use s3://, or the volume"


def _network_problems(plan: JobPlan, room: NodeRoom | None) -> Iterator[str]:
    if plan.network != "efa" or not plan.several_nodes:
        return
    if not plan.resources.gpus:
        yield "compute.network: efa joins GPUs, and --gpu-per-node is 0; use auto or tcp"
    elif room is not None and not room.efa:
        yield (
            f"compute.network: efa, but {plan.instance_type or 'a node'} has no EFA interface; use another "
            "instance type, or tcp"
        )


def _training_problems(config: Config, request: JobRequest, plan: JobPlan) -> Iterator[str]:
    """World size, mesh and memory of the trainer; a user's own program is not known."""
    if request.command:
        return
    try:
        require_processes(config, plan.world_size)
    except ConfigError as error:
        yield str(error).removesuffix(" Nothing was started.")
        return
    instance = instance_called(plan.instance_type)
    if instance is None or not plan.resources.gpus or config.recipe != "pretrain":
        return
    fitted = plan_training(
        config, gpu_of(instance), rented=Rented(instance, plan.nodes, plan.processes_per_node)
    )
    if not fitted.fits:
        needs, has = fitted.peak.parts.total / _GIB, fitted.device.usable_bytes / _GIB
        change = f"; it fits with {' '.join(fitted.advice[0].overrides)}" if fitted.advice else ""
        yield (
            f"{config.model.name} does not fit: a GPU needs {needs:.1f} GiB, {instance.gpu} has {has:.1f} GiB"
            f"{change} (scripts/plan_training.py says more)"
        )


def provenance_of(git: Mapping[str, Any], lock: Path) -> dict[str, str]:
    """The origin of a job: facts of git, the lock's digest, our version; unknown facts are left out."""
    facts = {
        "version": __version__,
        "commit": str(git.get("commit", "")),
        "dirty": str(git["dirty"]).lower() if "dirty" in git else "",
        "lock-sha256": sha256_of_file(lock) if lock.is_file() else "",
    }
    return {name: value for name, value in facts.items() if value}
