"""Find the folder of a job's checkpoints, and its newest complete checkpoint."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from trainyard.errors import ConfigError, TrainyardError
from trainyard.jobs.job_reader import FoundJob, JobReader
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.volumes.helper_pod import mount_claim, require_running
from trainyard.jobs.volumes.place import Place
from trainyard.jobs.volumes.volume_source import VolumeSource
from trainyard.programs.checkpoints.checkpoint_formats import find_checkpoints, newest_step

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api

_FOLDERS = (
    "--run-dir",
    "--save",
    "--checkpoint-dir",
    "--output-dir",
    "--output_dir",
    "trainer.default_local_dir",
)
"""Options of trainers that name the folder of the run."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CheckpointFolder:
    """A folder of checkpoints in a cluster: one of a pod, of a claim, or of a job and its claim."""

    namespace: str
    pod: str = ""
    claim: str = ""
    job: str = ""
    kind: str | None = None
    """The kind of the job; None if its name is enough."""
    path: str = ""
    """Absolute for a pod, for a claim relative to its root, for a job relative to its folder."""


@contextmanager
def open_found_folder(
    api: "Api", folder: CheckpointFolder, *, image: str = "", python: str = "python3", seconds: float = 300.0
) -> Iterator[VolumeSource]:
    """Give access to a folder of checkpoints while the body runs.

    A helper pod of this `image` has `seconds` to start. Raises ConfigError if the folder does not exist,
    ServiceError, WaitTimeoutError.
    """
    namespace, claim, path = folder.namespace, folder.claim, folder.path
    if folder.pod:
        place = Place(namespace, folder.pod)
        require_running(api, place)
        yield VolumeSource(api, place, path, python=python)
        return
    user, template = None, {}
    if folder.job:
        plan = plan_of(JobReader(api).find_job(namespace, folder.job, folder.kind))
        claim, path = plan.claim, path or job_checkpoint_folder(plan)
        if not claim:
            raise ConfigError(
                f"{folder.job} has no claim for checkpoints; name its pod with --pod and --path"
            )
        image, user, template = image or plan.image, plan.run_as_user, dict(plan.template)
    mounted = mount_claim(api, namespace, claim, image=image, user=user, seconds=seconds, template=template)
    with mounted as (place, mount):
        yield VolumeSource(api, place, str(PurePosixPath(mount) / path.strip("/")), python=python)


def plan_of(job: FoundJob) -> JobSpec:
    """Return the plan in a job's annotations. Raises ConfigError for a job that is not ours."""
    if (plan := job.plan) is None:
        raise ConfigError(
            "the job was not sent by trainyard job deploy, so its checkpoints are not known; name "
            "them with --claim or --pod"
        )
    return plan


def job_checkpoint_folder(plan: JobSpec) -> str:
    """The folder of the job's checkpoints, relative to the root of its claim; empty if it is not known."""
    words = plan.program.command
    named = [after for word, after in pairwise(words) if word in _FOLDERS]
    named += [value for option, _, value in (word.partition("=") for word in words) if option in _FOLDERS]
    for name in named:
        path, mount = PurePosixPath(name), PurePosixPath(plan.mount_path or "/checkpoints")
        if path.is_relative_to(mount):
            return str(path.relative_to(mount))
    return ""


def newest_step_on_claim(api: "Api", job: FoundJob) -> int | None:
    """Return the step of a job's newest complete checkpoint; None if it cannot be known, which is logged."""
    try:
        plan = plan_of(job)
        folder = job_checkpoint_folder(plan)
        if not plan.claim or folder in ("", "."):
            return None
        named = CheckpointFolder(namespace=job.namespace, job=job.name, kind=job.kind.name)
        with open_found_folder(api, named) as source:
            return newest_step(find_checkpoints(source.listing()))
    except TrainyardError as error:
        _logger.warning("the newest checkpoint of %s is not known: %s", job.name, error)
        return None
