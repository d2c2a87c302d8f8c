"""The program of pods that keep a run directory: `trainyard pod`, with the configuration in a file."""

import math
from pathlib import PurePosixPath

from trainyard.config.load import dump_yaml
from trainyard.config.schema import Config
from trainyard.jobs.job_spec import FILES_DIRECTORY, JobSpec, Program
from trainyard.run.launch_environment import nccl_log

CONFIG_FILE = "config.yaml"
_MARGIN_SECONDS = 15
"""The time between a program's last save and the end of its pod."""


def pod_program(name: str, config: Config, plan: JobSpec, *, once: bool = False) -> Program:
    """Return the program of pods that run `trainyard pod`; with `once` one pod runs it for all nodes."""
    pod, is_for_all = config.cluster.pod, once and plan.nodes > 1
    return Program(
        name,
        run_pod_command(config, plan, *(("--num-nodes", str(plan.nodes)) if is_for_all else ())),
        once=once,
        directory=pod.directory or "",
        python=pod.python,
        files={CONFIG_FILE: dump_yaml(config)},
        nccl_log=nccl_log(PurePosixPath(plan.run_directory, "logs"), 0) if is_for_all else "",
    )


def run_pod_command(config: Config, plan: JobSpec, *words: str) -> tuple[str, ...]:
    """The command of a pod that keeps a run directory, with the further `words`."""
    pod = config.cluster.pod
    return (
        # -P: a module of the program, such as its `datasets.py`, must not replace one that Trainyard imports.
        *(pod.python, "-P", "-m", "trainyard", "pod"),
        *("--config", f"{FILES_DIRECTORY}/{CONFIG_FILE}"),
        *("--run-dir", plan.run_directory),
        *("--nproc-per-node", str(plan.processes_per_node)),
        *words,
        *("--grace", f"{save_seconds(pod.grace_seconds)}s"),
    )


def grace_seconds(saving: float) -> int:
    """The grace period of a pod whose program has `saving` seconds for a last save."""
    return math.ceil(saving) + _MARGIN_SECONDS


def save_seconds(grace_seconds: int) -> int:
    """The share of the pod's grace period that is left for a last save."""
    return max(15, grace_seconds - _MARGIN_SECONDS)
