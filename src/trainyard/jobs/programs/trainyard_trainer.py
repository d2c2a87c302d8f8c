"""The trainer of this repository as the program of a job.

Every pod runs `scripts/run_pod.py`, which starts a process per GPU; the first pod then stores and proves the run.
"""

from pathlib import PurePosixPath

from trainyard.config.load import config_sha256, dump_yaml
from trainyard.config.schema import Config
from trainyard.jobs.job_plan import FILES_DIRECTORY, SCRATCH, Program

NAME = "trainyard"
CONFIG_FILE = "config.yaml"
_MARGIN_SECONDS = 15
"""Between the end of the trainer's time for a last save and the end of its pod."""


def trainer_program(config: Config, job: str, *, processes: int) -> Program:
    """The program that trains by `config` in a run directory of the job's name."""
    pod = config.cluster.pod
    settled = _with_places(config)
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


def trained_config_digest(config: Config) -> str:
    """The digest of the configuration that the pods train by."""
    return config_sha256(_with_places(config))


def trainer_seconds(grace_seconds: int) -> int:
    """The trainer's time for a last save, of the time that its pod is given."""
    return max(15, grace_seconds - _MARGIN_SECONDS)


def workspace_of(config: Config) -> str:
    """The folder in a pod for runs and prepared data: on the claim, if there is one."""
    volume = config.cluster.volume
    return (volume.mount_path or "/checkpoints").rstrip("/") if volume.claim else SCRATCH


def _with_places(config: Config) -> Config:
    """`config` with prepared data where every pod can write and read it."""
    if PurePosixPath(config.data.prepared_directory).is_absolute():
        return config
    data = config.data.model_copy(update={"prepared_directory": f"{workspace_of(config)}/prepared"})
    return config.model_copy(update={"data": data})
