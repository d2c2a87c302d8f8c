"""The trainer of this repository as the program of a job.

Every pod runs `trainyard pod`, which starts a process per GPU; the first pod then stores and proves the
run.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath

from trainyard.config.mesh import require_processes
from trainyard.config.schema import Config
from trainyard.config.section import Section
from trainyard.errors import ConfigError
from trainyard.jobs.job_spec import SCRATCH, JobSpec, Program
from trainyard.jobs.recipes.any_program import pod_program
from trainyard.plan.cost import RentedMachines
from trainyard.plan.device import gpu_of
from trainyard.plan.instances import instance_called
from trainyard.plan.training_plan import plan_training

NAME = "trainyard"
_GIB = 2**30


def problems(config: Config, plan: JobSpec) -> Iterator[str]:
    """Yield problems of the processes, world size, mesh and memory."""
    instance = instance_called(plan.instance_type)
    if 0 < plan.resources.gpus < plan.processes_per_node and config.model.device != "cpu":
        yield (
            f"--nproc-per-node {plan.processes_per_node}: each process needs a GPU of its own, and a pod has "
            f"{plan.resources.gpus}; leave it out for one per GPU"
        )
    try:
        require_processes(config, plan.nodes * plan.processes_per_node)
    except ConfigError as error:
        yield str(error).removesuffix(" Nothing was started.")
        return
    if instance is None or not plan.resources.gpus:
        return
    fitted = plan_training(
        config, gpu_of(instance), rented=RentedMachines(instance, plan.nodes, plan.processes_per_node)
    )
    if not fitted.fits:
        needs, has = fitted.peak.parts.total / _GIB, fitted.device.usable_bytes / _GIB
        change = f"; it fits with {' '.join(fitted.advice[0].overrides)}" if fitted.advice else ""
        yield (
            f"{config.model.name} does not fit: a GPU needs {needs:.1f} GiB, {instance.gpu} has {has:.1f} GiB"
            f"{change} (trainyard plan shows more)"
        )


def program(config: Config, plan: JobSpec) -> Program:
    """The program that trains in a run directory of the job's name."""
    return pod_program(NAME, config, plan)


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
