"""HyperPodPyTorchJob of the HyperPod training operator, `sagemaker.amazonaws.com/v1`.

Its schema is not public; the fields are those of the templates in aws/sagemaker-hyperpod-cli and of its
documentation. The operator talks to an agent in each pod, which `hyperpodrun` starts in place of torchrun; it
restarts processes, then the whole job.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trainyard.jobs.job_plan import JobPlan
from trainyard.jobs.kinds.job_object import files_of, job_object
from trainyard.jobs.kinds.kind_of_manifest import Manifests
from trainyard.jobs.pod_template import pod_template
from trainyard.jobs.programs.own_command import NAME as OWN_COMMAND

NAME = FOLLOWED = "hyperpod"
LONGEST_NAME = 63 - len("-pods-00000")
CONTAINER = "pytorch"
AGENT_PORT = 8080
_COUNTED_SECONDS = 6 * 3600


def problems(plan: JobPlan) -> Iterator[str]:
    if plan.instance_type and not plan.on_hyperpod:
        yield (
            f"--kind hyperpod: {plan.instance_type} is no instance type of HyperPod; its names begin with ml."
        )


def rendered(plan: JobPlan) -> Manifests:
    launched = replace(plan, program=replace(plan.program, command=_command(plan)))
    template = pod_template(launched, CONTAINER)
    template["spec"]["containers"][0]["ports"] = [{"containerPort": AGENT_PORT}]
    spec: dict[str, Any] = {
        "nprocPerNode": str(plan.processes_per_node),
        "replicaSpecs": [{"name": "pods", "replicas": plan.nodes, "template": template}],
        "runPolicy": {"cleanPodPolicy": "All", **_restarts(plan)},
    }
    return Manifests(job_object(plan, "sagemaker.amazonaws.com/v1", "HyperPodPyTorchJob", spec), files_of(plan))


def _restarts(plan: JobPlan) -> dict[str, Any]:
    """Processes are started again first, then the whole job."""
    if not plan.restarts:
        return {"jobMaxRetryCount": 0}
    policy = {
        "numRestartBeforeFullJobRestart": plan.restarts,
        "evalPeriodSeconds": _COUNTED_SECONDS,
        "maxFullJobRestarts": plan.restarts,
    }
    return {"jobMaxRetryCount": plan.restarts, "restartPolicy": policy}


def _command(plan: JobPlan) -> tuple[str, ...]:
    """Started by the agent's launcher; a user's own command names it itself."""
    if plan.program.name == OWN_COMMAND:
        return plan.program.command
    launcher = ("hyperpodrun", f"--nnodes={plan.nodes}", f"--nproc-per-node={plan.processes_per_node}")
    _, _, *arguments = plan.program.command
    return (*launcher, "scripts/train.py", *_without_processes(arguments))


def _without_processes(arguments: list[str]) -> tuple[str, ...]:
    """The launcher starts the processes, not the script."""
    at = arguments.index("--nproc-per-node")
    return (*arguments[:at], *arguments[at + 2 :])
