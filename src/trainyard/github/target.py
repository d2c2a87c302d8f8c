"""Choose where a run trains: your own GPU runner, a CodeBuild machine, or a cluster (EKS).

It chooses the machine of the job `train`, the queue that it waits in and what is known of where it trains:
CodeBuild and clusters train elsewhere, and a hosted machine starts and follows them. It queries no service.
"""

import json
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trainyard.errors import ConfigError
from trainyard.github.variables import (
    CLUSTER,
    CODEBUILD,
    LABELS,
    RUN_EXPRESSION,
    RunnerSelector,
    count_in,
    selector_in_json,
)

HOSTED = ("ubuntu-24.04",)
"""The labels of the machine that starts and follows a training elsewhere."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{1,149}")
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


class Target(StrEnum):
    """Kinds of machine."""

    GPU_RUNNER = "gpu-runner"
    CODEBUILD = "codebuild"
    """One build, which runs buildspec.yml."""
    EKS = "eks"
    """Pods of a cluster."""


@dataclass(frozen=True)
class Machine:
    """The machine that the job `train` is routed to."""

    labels: tuple[str, ...]
    """Labels that the runner must have; empty where the repository does not say which machine trains."""
    queue: str
    """Concurrency group; jobs of one queue run one after the other."""
    hardware: str | None = None
    """Comparable instance type of the catalogue; None when not known."""
    cluster: str = ""
    """The EKS or HyperPod cluster whose pods train."""
    group: str = ""
    """The runner group; empty where any runner with the labels fits."""

    @property
    def is_known(self) -> bool:
        """Return whether the repository says where to train."""
        return bool(self.labels or self.group)

    @property
    def runs_on(self) -> Any:
        """Return labels and group as `runs-on` takes them."""
        labels = list(self.labels)
        return {"group": self.group, "labels": labels} if self.group else labels


AS_SET_UP = "as set up"
"""The value of the input `runner` that leaves it to the repository's variables."""
PLACES = {
    Target.GPU_RUNNER: (LABELS, """'["self-hosted","gpu"]'"""),
    Target.CODEBUILD: (CODEBUILD, "NAME"),
    Target.EKS: (CLUSTER, "NAME"),
}
"""The variable that names each target's machine, with an example value in shell syntax."""


def target_for(requested: str, variables: MutableMapping[str, str]) -> Target:
    """Return the requested target, or else the one that the repository is set up for.

    Anything but the name of a target is a runner's label, or JSON as `runs-on` takes it, which then replaces
    the variable. If several are set up, the order is: the own runner, which is paid for already, CodeBuild,
    the cluster.
    """
    requested = "" if requested == AS_SET_UP else requested or variables.get(LABELS, "")
    if (name := requested.lower()) in list(Target):  # GitHub compares labels without case too
        return Target(name)
    if requested:
        is_json = requested.lstrip().startswith(("[", "{"))
        variables[LABELS] = requested if is_json else json.dumps([requested])
    named = (target for target, (variable, _) in PLACES.items() if variables.get(variable))
    return next(named, Target.GPU_RUNNER)


def machine_for(target: Target, variables: Mapping[str, str]) -> Machine:
    """Return the machine that the repository's variables describe. ConfigError names the wrong variable."""
    selector, run = RunnerSelector(()), variables.get("GITHUB_RUN_ID", "")
    if target is Target.CODEBUILD:
        project = variables.get(CODEBUILD, "")
        if project and not _NAME.fullmatch(project):
            raise ConfigError(
                f"TRAINYARD_CODEBUILD_PROJECT: {project!r} is not a name of a CodeBuild project"
            )
        return Machine(HOSTED if project else (), f"trainyard-codebuild-{run}")
    if target is Target.EKS:
        cluster, hardware = variables.get(CLUSTER, ""), variables.get("TRAINYARD_EKS_INSTANCE_TYPE") or None
        if cluster and not _CLUSTER_NAME.fullmatch(cluster):
            raise ConfigError(
                f"TRAINYARD_EKS_CLUSTER: {cluster!r} is not a name of an EKS or HyperPod cluster"
            )
        # A private cluster is reached by a runner of its network only.
        runner = selector_in_json(variables.get("TRAINYARD_EKS_RUNNER") or json.dumps(HOSTED))
        return Machine(
            runner.labels if cluster else (), f"trainyard-eks-{run}", hardware, cluster, runner.group
        )
    if text := variables.get(LABELS, ""):
        try:
            selector = selector_in_json(text)
        except ConfigError as error:
            raise ConfigError(f"{LABELS}: {error}") from None
    labels = tuple(_of_this_run(label, variables) for label in selector.labels)
    hardware = variables.get("TRAINYARD_INSTANCE_TYPE") or None
    return Machine(labels, "trainyard-gpu", hardware, group=selector.group)


def _of_this_run(label: str, variables: Mapping[str, str]) -> str:
    """Return a label with this run's numbers: GitHub evaluates no `${{ github.run_id }}` of a variable."""
    return RUN_EXPRESSION.sub(lambda found: variables.get(f"GITHUB_{found[1].upper()}", ""), label)


def node_count(machine: Machine, variables: Mapping[str, str]) -> int:
    """Return how many machines train: several only in a cluster. Raises ConfigError."""
    return count_in(variables, "TRAINYARD_EKS_NODES", most=99_999) if machine.cluster else 1
