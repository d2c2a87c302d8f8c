"""The trainer of this repository as the program of a job.

Every pod runs `scripts/run_pod.py`, which starts a process per GPU; the first pod then stores and proves the
run.
"""

from pathlib import PurePosixPath

from trainyard.config.load import dump_yaml
from trainyard.config.schema import Config
from trainyard.config.section import Section
from trainyard.jobs.job_plan import FILES_DIRECTORY, SCRATCH, Program

NAME = "trainyard"
CONFIG_FILE = "config.yaml"
_MARGIN_SECONDS = 15
"""Between the end of the trainer's time for a last save and the end of its pod."""


def trainer_program(settled: Config, job: str, *, processes: int) -> Program:
    """The program that trains by a `settled_config` in a run directory of the job's name."""
    config, pod = settled, settled.cluster.pod
    command = (
        *(pod.python, "scripts/run_pod.py"),
        *("--config", f"{FILES_DIRECTORY}/{CONFIG_FILE}"),
        *("--run-dir", f"{workspace_of(config)}/{job}"),
        *("--nproc-per-node", str(processes)),
        *("--grace", f"{trainer_seconds(pod.grace_seconds)}s"),
    )
    return Program(
        NAME,
        command,
        directory=pod.directory or "",
        python=pod.python,
        files={CONFIG_FILE: dump_yaml(settled)},
    )


def trainer_seconds(grace_seconds: int) -> int:
    """The trainer's time for a last save, of the time that its pod is given."""
    return max(15, grace_seconds - _MARGIN_SECONDS)


def workspace_of(config: Config) -> str:
    """The folder in a pod for runs and prepared data: on the claim, if there is one."""
    volume = config.cluster.volume
    return (volume.mount_path or "/checkpoints").rstrip("/") if volume.claim else SCRATCH


def settled_config(config: Config, *, efa: bool) -> Config:
    """`config` as the pods train by it: the network that they have, and prepared data where all can read it.

    `efa` says whether the pods have interfaces for it. With `tcp` on record, a run of several machines can be
    proven without NCCL's log.
    """
    changes: dict[str, Section] = {}
    if config.compute.network == "auto":
        changes["compute"] = config.compute.model_copy(update={"network": "efa" if efa else "tcp"})
    if not PurePosixPath(config.data.prepared_directory).is_absolute():
        prepared = f"{workspace_of(config)}/prepared"
        changes["data"] = config.data.model_copy(update={"prepared_directory": prepared})
    return config.model_copy(update=changes)
