"""HyperPodPyTorchJob of the HyperPod training operator, `sagemaker.amazonaws.com/v1`.

Its schema is not public; the fields are those of the templates in aws/sagemaker-hyperpod-cli and of its
documentation. The operator talks to an agent in each pod, which `hyperpodrun` starts instead of torchrun:
the trainer does so where it finds the operator's variables, a user's own command names it itself. The
operator restarts processes first, then the complete job; how it judges exit codes is not known. Its condition
types are those that its command line and AWS's samples read.
"""

from collections.abc import Iterator
from typing import Any

from trainyard.cluster.needed_apis import Controller, NeededApi
from trainyard.jobs.job_kind import JobKind, Manifests, Observed
from trainyard.jobs.job_object import job_object, make_files_config_map
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.kinds import pytorch_job
from trainyard.jobs.pod_template import pod_template
from trainyard.jobs.state.reading import Reading, count, field_of

CONTAINER = "pytorch"
AGENT_PORT = 8080
_COUNTED_SECONDS = 6 * 3600


def find_problems(plan: JobSpec) -> Iterator[str]:
    if plan.instance_type and not plan.on_hyperpod:
        yield (
            f"--kind hyperpod: {plan.instance_type} is not an instance type of HyperPod: those begin with ml."
        )


def render(plan: JobSpec) -> Manifests:
    template = pod_template(plan, CONTAINER)
    template["spec"]["containers"][0].setdefault("ports", []).append({"containerPort": AGENT_PORT})
    policy: dict[str, Any] = {"cleanPodPolicy": "All", "jobMaxRetryCount": plan.restarts}
    if plan.restarts:
        policy["restartPolicy"] = {
            "numRestartBeforeFullJobRestart": plan.restarts,
            "evalPeriodSeconds": _COUNTED_SECONDS,
            "maxFullJobRestarts": plan.restarts,
        }
    spec: dict[str, Any] = {
        "nprocPerNode": str(plan.processes_per_node),
        "replicaSpecs": [{"name": "pods", "replicas": plan.nodes, "template": template}],
        "runPolicy": policy,
    }
    return Manifests(
        job_object(plan, "sagemaker.amazonaws.com/v1", "HyperPodPyTorchJob", spec),
        make_files_config_map(plan),
    )


def read_status(observed: Observed) -> Reading:
    """Return the reading of a HyperPodPyTorchJob."""
    groups = field_of(observed.job or {}, "spec", "replicaSpecs") or ()
    wanted = sum(count(entry.get("replicas"), 1) for entry in groups)
    return pytorch_job.read_conditions(observed, wanted or None)


KIND = JobKind(
    name="hyperpod",
    api_kind="HyperPodPyTorchJob",
    apis=(
        NeededApi(
            "sagemaker.amazonaws.com",
            "v1",
            "hyperpodpytorchjobs",
            "the add-on HyperPod training operator",
            add_on="amazon-sagemaker-hyperpod-training-operator",
        ),
    ),
    controllers=(
        Controller(
            "HyperPod training operator",
            ("hp-training-operator-hp-training-controller-manager", "hyperpod-training-operator"),
        ),
    ),
    trial_spec=lambda template, _: {"replicaSpecs": [{"name": "pods", "replicas": 1, "template": template}]},
    has_dry_run=False,
    longest_name=63 - len("-pods-00000"),
    find_problems=find_problems,
    render=render,
    read_status=read_status,
    pod_label="job-name",
    container=CONTAINER,
    rank_of=pytorch_job.rank_of,
    suspend=(),
    agent="hyperpodrun",
)
