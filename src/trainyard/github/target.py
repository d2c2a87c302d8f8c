"""Choose where a run trains: your own GPU runner, a CodeBuild machine, a cluster (EKS), or this machine.

It chooses the labels that GitHub routes the job by, the queue it waits in and what is known of the machine.
It queries no service. CodeBuild's labels and sizes:
https://docs.aws.amazon.com/codebuild/latest/userguide/sample-github-action-runners-update-labels.html
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from trainyard.errors import ConfigError
from trainyard.github.variables import (
    CLUSTER,
    CODEBUILD,
    LABELS,
    RUN_EXPRESSION,
    RunnerSelector,
    selector_in_json,
)

GPU_SMALL = "gpu_small"
GPU_SMALL_HARDWARE = "g5.xlarge"
"""The instance type of the catalogue with the same GPU, processors and memory: one A10G, 4 vCPU, 16 GiB."""
_CPU_SIZES = ("small", "medium", "large", "xlarge", "2xlarge")
_CPU_DEFAULT = "large"
_IMAGE = "linux-5.0"
"""Amazon Linux 2023 with Python 3.11; CodeBuild lists GPU sizes for it."""
_KNOWN_IMAGE = re.compile(r"(linux-ec2|linux|ubuntu|arm-ec2|arm|custom-[\w-]+)-[\w.:/-]+", re.ASCII)
_ATTEMPT = "{0}"
"""Placeholder of the attempt in a label, because a repeated job has the plan of an earlier attempt."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{1,149}")
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_LABEL = re.compile(r"[\w:./=-]{1,256}", re.ASCII)


class Target(StrEnum):
    """Kinds of machine. The dispatch input `target` offers all but the last."""

    GPU_RUNNER = "gpu-runner"
    CODEBUILD = "codebuild"
    EKS = "eks"
    """Pods of a cluster, which `deploy_eks.yml` sends a job to; no job of GitHub trains."""
    HERE = "here"
    """The machine that plans also trains, as in `buildspec.yml`; no job is routed."""


@dataclass(frozen=True)
class Machine:
    """The machine that a job is routed to."""

    templates: tuple[str, ...]
    """Labels that the runner must have; `{0}` is replaced by the attempt.

    Empty where no job is routed, and where the repository does not say which machine trains.
    """
    queue: str
    """Concurrency group; jobs of one queue run one after the other."""
    hardware: str | None = None
    """Comparable instance type of the catalogue; None when not known."""
    attempt: str = "1"
    cluster: str = ""
    """The EKS or HyperPod cluster whose pods train; no job is routed then."""
    group: str = ""
    """The runner group; empty where any runner with the labels fits."""

    @property
    def is_known(self) -> bool:
        """Return whether the repository says where to train."""
        return bool(self.templates or self.cluster or self.group)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels that the runner of this attempt must have."""
        return tuple(label.replace(_ATTEMPT, self.attempt) for label in self.templates)

    @property
    def runs_on(self) -> str:
        """Return labels and group as JSON, for `runs-on: ${{ fromJSON(format(…, github.run_attempt)) }}`.

        The braces of an object are doubled, because `format` takes a single one for a placeholder.
        """
        labels = json.dumps(list(self.templates))
        return f'{{{{"group": {json.dumps(self.group)}, "labels": {labels}}}}}' if self.group else labels


AS_SET_UP = "as set up"
"""The value of the dispatch input `target` that leaves it to the repository's variables."""
PLACES = {
    Target.GPU_RUNNER: (LABELS, """'["self-hosted","gpu"]'"""),
    Target.CODEBUILD: (CODEBUILD, "NAME"),
    Target.EKS: (CLUSTER, "NAME"),
}
"""The variable that names each target's machine, with an example value in shell syntax."""


def target_for(requested: str, variables: Mapping[str, str]) -> Target:
    """Return the requested target, or else the one that the repository is set up for.

    If several are set up, the order is: the own runner, which is paid for already, CodeBuild, the cluster.
    Outside a workflow nothing is routed. Raises ConfigError for an unknown target.
    """
    requested = "" if requested == AS_SET_UP else requested
    if requested and requested not in list(Target):
        raise ConfigError(f"target: {requested!r} is neither {' nor '.join(PLACES)}")
    if requested:
        return Target(requested)
    if variables.get("GITHUB_ACTIONS") != "true":
        return Target.HERE
    named = (target for target, (variable, _) in PLACES.items() if variables.get(variable))
    return next(named, Target.GPU_RUNNER)


def machine_for(target: Target, variables: Mapping[str, str], *, on_cpu: bool) -> Machine:
    """Return the machine that the repository's variables describe. ConfigError names the wrong variable.

    `on_cpu` is whether the configuration trains on a CPU; it decides CodeBuild's size where none is given.
    """
    if target is Target.CODEBUILD:
        return _codebuild(variables, on_cpu=on_cpu)
    if target is Target.EKS:
        return _cluster(variables)
    selector = RunnerSelector(())
    if target is Target.GPU_RUNNER and (text := variables.get(LABELS, "")):
        try:
            selector = selector_in_json(text)
        except ConfigError as error:
            raise ConfigError(f"{LABELS}: {error}") from None
    labels = tuple(_of_this_run(label, variables) for label in selector.labels)
    return Machine(
        labels,
        "trainyard-gpu",
        variables.get("TRAINYARD_INSTANCE_TYPE") or None,
        variables.get("GITHUB_RUN_ATTEMPT", "1"),
        group=selector.group,
    )


def _of_this_run(label: str, variables: Mapping[str, str]) -> str:
    """Return a label with this run's numbers: GitHub evaluates no `${{ github.run_id }}` of a variable."""
    known = {
        "run_id": variables.get("GITHUB_RUN_ID", ""),
        "run_number": variables.get("GITHUB_RUN_NUMBER", ""),
        "run_attempt": _ATTEMPT,
    }
    return RUN_EXPRESSION.sub(lambda found: known[found[1]], label)


def node_count(machine: Machine, variables: Mapping[str, str]) -> int:
    """Return how many machines train: several only in a cluster. Raises ConfigError."""
    text = variables.get("TRAINYARD_EKS_NODES") or "1"
    if not machine.cluster:
        return 1
    if not re.fullmatch(r"[1-9]\d{0,4}", text, re.ASCII):
        raise ConfigError(f"TRAINYARD_EKS_NODES: {text[:40]!r} is not a number of pods such as 4")
    return int(text)


def _cluster(variables: Mapping[str, str]) -> Machine:
    """Return the pods of a cluster; its operators and queues order the jobs."""
    cluster = variables.get(CLUSTER, "")
    if cluster and not _CLUSTER_NAME.fullmatch(cluster):
        raise ConfigError(f"TRAINYARD_EKS_CLUSTER: {cluster!r} is not a name of an EKS or HyperPod cluster")
    hardware = variables.get("TRAINYARD_EKS_INSTANCE_TYPE") or None
    return Machine((), f"trainyard-eks-{variables.get('GITHUB_RUN_ID', '')}", hardware, cluster=cluster)


def _codebuild(variables: Mapping[str, str], *, on_cpu: bool) -> Machine:
    """Return a CodeBuild machine for this one job, which waits for no other job."""
    project = variables.get(CODEBUILD, "")
    if project and not _NAME.fullmatch(project):
        raise ConfigError(
            f"TRAINYARD_CODEBUILD_PROJECT: {project!r} is not a name of a CodeBuild project. "
            "gh variable set TRAINYARD_CODEBUILD_PROJECT --body NAME, or train with target gpu-runner."
        )
    attempt = variables.get("GITHUB_RUN_ATTEMPT", "1")
    run = f"{variables.get('GITHUB_RUN_ID', '')}-{_ATTEMPT}"
    size = variables.get("TRAINYARD_CODEBUILD_COMPUTE") or (_CPU_DEFAULT if on_cpu else GPU_SMALL)
    image = variables.get("TRAINYARD_CODEBUILD_IMAGE") or _IMAGE
    # The last label is this job's own. With the first alone GitHub may hand the job to a runner that was
    # started for another job of the run, which then waits forever.
    labels = (
        f"codebuild-{project}-{run}",
        _image_label(image),
        _size_label(size, on_cpu=on_cpu),
        f"train-{run}",
    )
    queue = f"trainyard-codebuild-{run.replace(_ATTEMPT, attempt)}"
    hardware = GPU_SMALL_HARDWARE if size == GPU_SMALL else None
    return Machine(labels if project else (), queue, hardware, attempt)


def _image_label(image: str) -> str:
    """Return the label of an image that can train."""
    if "-lambda-" in image or image.startswith(("windows", "mac")):
        raise ConfigError(
            f"TRAINYARD_CODEBUILD_IMAGE: {image} cannot train: Lambda ends after 15 minutes, and "
            f"the workflow is written for Linux. Use {_IMAGE}, or ubuntu-7.0 on a CPU."
        )
    if not _KNOWN_IMAGE.fullmatch(image) or not _LABEL.fullmatch(image):
        raise ConfigError(f"TRAINYARD_CODEBUILD_IMAGE: {image!r} is not an image such as {_IMAGE}")
    return f"image:{image}"


def _size_label(size: str, *, on_cpu: bool) -> str:
    if size == "gpu_large":
        raise ConfigError(
            "TRAINYARD_CODEBUILD_COMPUTE: gpu_large has V100 GPUs, which torch 2.13 is not built for "
            "(compute capability 7.0, it needs 7.5). Use gpu_small, or fleet:NAME with a reserved fleet."
        )
    fleet = size.removeprefix("fleet:")
    if fleet != size and _NAME.fullmatch(fleet):
        return size
    if size == GPU_SMALL or (on_cpu and size in _CPU_SIZES):
        return f"instance-size:{size}"
    if size in _CPU_SIZES:
        raise ConfigError(
            f"TRAINYARD_CODEBUILD_COMPUTE: {size} has no GPU, and the configuration does not say "
            "model.device: cpu. Use gpu_small, fleet:NAME, or --set model.device=cpu."
        )
    raise ConfigError(
        f"TRAINYARD_CODEBUILD_COMPUTE: {size!r} is neither gpu_small, {', '.join(_CPU_SIZES)} nor fleet:NAME"
    )
