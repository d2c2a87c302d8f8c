"""Run `recipe: command` in a job: a run directory is stored and proven.

Every pod runs `trainyard pod`, with the configuration in a file, which starts the program: directly, or by
torchrun if there are several processes. The image needs the packages of the program and, beside them,
Trainyard's core (`pip install git+https://github.com/OWNER/REPOSITORY`). Presets and the trainer of this
repository run in the same way.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath

from trainyard.config.load import dump_yaml
from trainyard.config.schema import Config
from trainyard.jobs.job_spec import FILES_DIRECTORY, JobSpec, Program
from trainyard.jobs.kinds import find_kind
from trainyard.run.launch_environment import nccl_log

NAME = "program"
CONFIG_FILE = "config.yaml"
# The time between a program's last save and the end of its pod, and the least time for the save.
_MARGIN_SECONDS, _LEAST_SAVE_SECONDS = 15, 15


def ray_problems(config: Config, plan: JobSpec) -> Iterator[str]:
    """Yield why a program that uses one node cannot run on several nodes of Ray."""
    if find_kind(plan.kind).on_ray and plan.nodes > 1:
        yield (
            f"recipe {config.recipe}: on Ray it runs once, on the head, so {plan.nodes - 1} of "
            f"{plan.nodes} nodes would do nothing; use --kind pytorchjob or trainjob"
        )


def problems(config: Config, plan: JobSpec) -> Iterator[str]:
    yield from ray_problems(config, plan)
    if not config.checkpointing.shared:
        yield (
            "checkpointing.shared: false is for the trainer of this repository; leave it out with this recipe"
        )


def program(config: Config, plan: JobSpec) -> Program:
    """The program that runs the command in a run directory of the job's name."""
    return pod_program(NAME, config, plan, once=find_kind(plan.kind).on_ray)


def pod_program(name: str, config: Config, plan: JobSpec, *, once: bool = False) -> Program:
    """Return the program of pods that run `trainyard pod`; with `once` one pod runs it for all nodes."""
    pod, is_for_all = config.cluster.pod, once and plan.nodes > 1
    command = (
        # -P: a module of the program, such as its `datasets.py`, must not replace one that Trainyard imports.
        *(pod.python, "-P", "-m", "trainyard", "pod"),
        *("--config", f"{FILES_DIRECTORY}/{CONFIG_FILE}"),
        *("--run-dir", plan.run_directory),
        *("--nproc-per-node", str(plan.processes_per_node)),
        *(("--num-nodes", str(plan.nodes)) if is_for_all else ()),
        *("--grace", f"{max(_LEAST_SAVE_SECONDS, pod.grace_seconds - _MARGIN_SECONDS)}s"),
    )
    return Program(
        name,
        command,
        once=once,
        directory=pod.directory or "",
        python=pod.python,
        files={CONFIG_FILE: dump_yaml(config)},
        nccl_log=nccl_log(PurePosixPath(plan.run_directory, "logs"), 0) if is_for_all else "",
    )
