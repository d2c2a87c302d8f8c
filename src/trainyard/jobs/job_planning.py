"""Plan a job: check everything that can be known before anything is sent, and name all problems at once.

Config + JobSpec as asked for ──> settled by the configuration ──> with what the preflight saw
    ──plan_job──> JobSpec with every value decided, or a ConfigError with every problem
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from trainyard import __version__
from trainyard.cluster.capacity import choose_zone
from trainyard.cluster.checks.image import pin_digest
from trainyard.cluster.job_preflight import room_for
from trainyard.cluster.pod_fragment import MAIN
from trainyard.cluster.resource_quantities import parse_quantity
from trainyard.cluster.snapshot import Volume
from trainyard.cluster.verdict import Verdict
from trainyard.config.cluster import ClusterPodConfig
from trainyard.config.load import config_sha256, values_sha256
from trainyard.config.registries import DEFAULT_JOB_KIND, PRESETS
from trainyard.config.schema import Config
from trainyard.config.section import Section
from trainyard.errors import ConfigError
from trainyard.jobs.job_spec import SCRATCH, JobSpec, PodResources
from trainyard.jobs.plan_problems import find_plan_problems, variable_scope
from trainyard.jobs.recipes import ANY_PROGRAM, TRAINER, job_program, program_problems
from trainyard.plan.environment.variable_rules import network_environment
from trainyard.plan.instances import NodeRoom, room_of_type
from trainyard.programs.presets.preset import load_preset
from trainyard.run.atomic_files import sha256_of_file

EFA_HUGEPAGES_MIB = 5120
"""The amount that AWS's EFA examples request."""
_LEAST_SHARED_MIB = 1024


def settle_job(job: JobSpec, config: Config, *, namespace: str = "") -> JobSpec:
    """Return the job with the configuration's values where it has none of its own.

    `namespace` is that of the kubeconfig's context.
    """
    found = job.with_settings(config.cluster, namespace=namespace)
    is_preset = config.recipe in PRESETS
    needs_ray = found.kind == "auto" and is_preset and load_preset(config.recipe).launcher == "ray"
    kind = "rayjob" if needs_ray else found.kind
    return replace(found, name=found.name or name_from(config.model.name), kind=kind)


def observe_cluster(job: JobSpec, verdict: Verdict, *, creator: str) -> JobSpec:
    """Return the job with what the preflight saw; the image has the digest of its registry, if known."""
    snapshot = verdict.facts.snapshot
    modes = snapshot.volume.access_modes if isinstance(snapshot.volume, Volume) else ()
    return replace(
        job,
        kind=verdict.facts.kind.name,
        image=pin_digest(job.image, snapshot.image),
        room=room_for(snapshot, job),
        zone=choose_zone(snapshot, job),
        shared_claim="ReadWriteMany" in modes,
        creator=creator,
    )


def name_from(text: str) -> str:
    """Return a job name derived from the name of a model."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"job-{plain}".strip("-"))[:40].rstrip("-")


def provenance_of(git: Mapping[str, Any], lock: Path) -> dict[str, str]:
    """The origin of a job: facts of git, the lock's digest, our version; unknown facts are left out."""
    facts = {
        "version": __version__,
        "commit": str(git.get("commit", "")),
        "dirty": str(git["dirty"]).lower() if "dirty" in git else "",
        "lock-sha256": sha256_of_file(lock) if lock.is_file() else "",
    }
    return {name: value for name, value in facts.items() if value}


def plan_job(config: Config, job: JobSpec) -> JobSpec:
    """Return the job with every value decided. Raises ConfigError with every problem, one per line."""
    job = job.with_settings(config.cluster)
    room = job.room or room_of_type(job.instance_type)
    settled = _with_volume(config, job)
    draft, in_pods = _draft_plan(settled, job, room)
    plan = replace(draft, program=job_program(in_pods, draft))
    problems = [*find_plan_problems(settled, job, plan, room), *program_problems(in_pods, draft)]
    if problems:
        errors = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        raise ConfigError("\n".join([*problems, f"{errors}. Nothing was sent."]))
    return plan


def config_in_pods(config: Config, *, efa: bool) -> Config:
    """The configuration that the pods train with: their network, and a folder of prepared data for all.

    `efa` says whether the pods have EFA interfaces, and decides a network of `auto`; `plan_problems` refuses
    pods without the EFA of their type. With `tcp` on record, a run of several machines can be proven without
    NCCL's log.
    """
    changes: dict[str, Section] = {}
    if config.compute.network == "auto":
        changes["compute"] = config.compute.model_copy(update={"network": "efa" if efa else "tcp"})
    if not PurePosixPath(config.data.prepared_directory).is_absolute():
        prepared = f"{workspace_of(config)}/prepared"
        changes["data"] = config.data.model_copy(update={"prepared_directory": prepared})
    return config.model_copy(update=changes)


def workspace_of(config: Config) -> str:
    """The folder in a pod for runs and prepared data: on the claim, if there is one."""
    volume = config.cluster.volume
    return (volume.mount_path or "/checkpoints").rstrip("/") if volume.claim else SCRATCH


def network_in_pods(config: Config, room: NodeRoom | None, *, nodes: int, gpus: int) -> str:
    """Return the network that the configuration in the pods will have: `auto` is decided by their EFA."""
    wants_efa = _wants_efa(config, nodes=nodes, gpus=gpus)
    resources = pod_resources(room, config.cluster.pod, gpus=gpus, efa=wants_efa)
    return config_in_pods(config, efa=resources.efa > 0).compute.network


def warnings_of(plan: JobSpec) -> list[str]:
    """Warn about settings that are allowed but may be unintended."""
    found = []
    if plan.image and "@sha256:" not in plan.image:
        found.append(
            f"{plan.image}: named by a tag, which may be moved: pods that start later may run another image. "
            "Name the image with its digest (@sha256:…)"
        )
    # Several nodes without a volume keep their checkpoints in the store (`checkpointing.shared: false`).
    if not plan.claim and plan.nodes == 1 and plan.program.keeps_run:
        found.append(
            "no volume: checkpoints are on the pod's own disk and lost with it. Name a claim with --volume"
        )
    beside = [each["name"] for each in (plan.template.get("spec") or {}).get("containers") or ()]
    if others := [name for name in beside if name != MAIN]:
        found.append(
            f"cluster.pod.template, container {', '.join(others)}: a pod runs until all of its containers "
            "have ended. Make it an init container with restartPolicy Always, which ends with the training"
        )
    gpus, processes = plan.resources.gpus, plan.processes_per_node
    if plan.program.name == ANY_PROGRAM and processes < gpus and not plan.manifest:
        found.append(
            f"{gpus} GPUs per pod, and {processes} started by Trainyard: the program must use them itself, "
            f"as accelerate launch does. Set program.processes={gpus} for torchrun to start one per GPU"
        )
    if plan.program.name == TRAINER and processes < gpus:
        found.append(
            f"{gpus} GPUs per pod, and {processes} of them used: --nproc-per-node decides how many train. "
            f"Omit it, or hold fewer with --gpu-per-node {processes}"
        )
    return found


def _draft_plan(config: Config, job: JobSpec, room: NodeRoom | None) -> tuple[JobSpec, Config]:
    """Return the plan, whether or not it can be sent, without its program, and the pods' configuration."""
    pod, claim = config.cluster.pod, config.cluster.volume.claim or ""
    gpus = job.gpus_per_node
    if gpus is None:
        gpus = 0 if room is None or config.model.device == "cpu" else room.gpus
    resources = pod_resources(room, pod, gpus=gpus, efa=_wants_efa(config, nodes=job.nodes, gpus=gpus))
    settled = config_in_pods(config, efa=resources.efa > 0)
    label = (room.instance_type if room else "") or job.instance_type
    # Kueue's topology, if it is used, chooses the place itself.
    is_in_one_zone = job.nodes > 1 and resources.efa > 0 and not (job.queue and pod.topology)
    # Before values are filled in: a run whose command has {training.max_steps} may continue with more steps.
    program = config.program
    command = values_sha256({config.recipe: [program.command, program.script, program.preset]})
    plan = replace(
        job,
        kind=DEFAULT_JOB_KIND if job.kind == "auto" else job.kind,
        processes_per_node=job.processes_per_node or _processes(config, job, gpus),
        gpus_per_node=gpus,
        resources=resources,
        instance_type=label,
        on_hyperpod=bool(room and room.on_hyperpod) or label.startswith("ml."),
        zone=job.zone if is_in_one_zone else None,
        network=config.compute.network,
        claim=claim,
        shared_claim=bool(claim) and (job.nodes > 1 or job.shared_claim),
        mount_path=workspace_of(config) if claim else "",
        topology=pod.topology or "",
        run_as_user=pod.run_as_user,
        grace_seconds=pod.grace_seconds,
        restarts=pod.restarts,
        ray_version=pod.ray_version or "",
        owner=f"{job.namespace}/{job.creator}/{command[:16]}",
        provenance={**job.provenance, "config-sha256": config_sha256(settled)},
    )
    variables = network_environment(variable_scope(plan))
    if not (job.program.command or config.is_program):
        variables.pop("NCCL_DEBUG", None)  # the trainer sets it, and keeps the log in the run directory
    return replace(plan, environment={**variables, **job.environment}), settled


def _wants_efa(config: Config, *, nodes: int, gpus: int) -> bool:
    return nodes > 1 and gpus > 0 and config.compute.network != "tcp"


def _processes(config: Config, job: JobSpec, gpus: int) -> int:
    """Return the processes per node: one per GPU, unless `program.processes` decides them."""
    is_preset = config.recipe in PRESETS
    is_open = load_preset(config.recipe).launcher == "auto" if is_preset else config.is_program
    return config.program.processes if is_open and not job.program.command else max(1, gpus)


def _with_volume(config: Config, job: JobSpec) -> Config:
    """`config` with the volume that the command line names."""
    changes = {"claim": job.claim or None, "mount_path": job.mount_path or None}
    volume = config.cluster.volume.model_copy(update=changes)
    cluster = config.cluster.model_copy(update={"volume": volume})
    return config.model_copy(update={"cluster": cluster})


def pod_resources(room: NodeRoom | None, settings: ClusterPodConfig, *, gpus: int, efa: bool) -> PodResources:
    """Compute the requests of a pod with `gpus` GPUs; `efa` gives it its share of the interfaces.

    Without a room, processors and memory come from `settings`.
    """
    share = min(1.0, gpus / room.gpus) if room and room.gpus and gpus else 1.0
    cpu = settings.cpu * 1000 if settings.cpu else _share(room.cpu_millis if room else 0, share)
    memory = _mebibytes(settings.memory) if settings.memory else _share(room.memory_mib if room else 0, share)
    shared = min(memory, max(_LEAST_SHARED_MIB, memory // 4))
    if settings.shared_memory:
        shared = _mebibytes(settings.shared_memory)
    interfaces = max(1, round(room.efa * share)) if efa and room and room.efa else 0
    pages = room.hugepages_mib if interfaces and room else 0
    return PodResources(
        cpu_millis=cpu,
        memory_mib=memory,
        gpus=gpus,
        efa=interfaces,
        hugepages_mib=EFA_HUGEPAGES_MIB if pages >= EFA_HUGEPAGES_MIB else 0,
        shared_memory_mib=shared,
    )


def _share(total: int, share: float) -> int:
    """A share, rounded down to whole hundreds above a thousand, because the last digits mean nothing."""
    part = int(total * share)
    return part - part % 100 if part > 1000 else part


def _mebibytes(size: str) -> int:
    return int(parse_quantity(size) / 2**20)
