"""RayCluster of KubeRay, `ray.io/v1`, and a RayJob that runs the command on it.

The first node is the head, which has GPUs like the others. The cluster belongs to the job; or the job names a
RayCluster that is there, which is used as it is, if its pods can run the plan.

A program that runs in every pod is started on each node by `trainyard step ray`, which also sets what
other operators set: the number of nodes, the node's rank, and the address of the first. Ray's own drivers run
once.

KubeRay pastes the entrypoint into a shell script of its submitter, and Ray hands it to another shell on the
head. Shell syntax would therefore take effect in the wrong place: of `cd a && b` Ray runs only `cd a`, and
the job succeeds. So an entrypoint has plain words only.

KubeRay restarts a command whatever its exit code is. So the entrypoint restarts what `trainyard pod`
runs, which has exit codes that are final; KubeRay restarts only a command without it.

A RayCluster never ends; the command on it does.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from trainyard.cluster.needed_apis import Controller, NeededApi
from trainyard.cluster.pod_fragment import merge_fragment
from trainyard.jobs.job_kind import JobKind, Manifests, Observed
from trainyard.jobs.job_object import KIND_LABEL, LABEL, job_object, part_object
from trainyard.jobs.job_spec import FILES_DIRECTORY, SCRATCH, JobSpec, Program
from trainyard.jobs.pod_template import NOT_DISRUPTED, container_security, pod_template
from trainyard.jobs.state.pod_facts import COMPLETION_INDEX, completion_index, whole_number
from trainyard.jobs.state.reading import (
    NOT_ACTED,
    Json,
    Phase,
    Reading,
    claims_of,
    conditions,
    count,
    field_of,
    message_of,
    read_labels,
    true_conditions,
)
from trainyard.plan.instances import GPU
from trainyard.run.launch_environment import nccl_log_variables
from trainyard.watch.failure_classes import FailureClass

LONGEST_NAME = 47
"""KubeRay's limit for RayJobs."""
_LONGEST_CLUSTER = 53
API = "ray.io/v1"
SUBMITTED_AS = "rayjob"
GROUP = "workers"
POD_LABEL = "ray.io/cluster"
INSTALLS = "the KubeRay operator"
CONTROLLER = Controller("KubeRay operator", ("kuberay-operator",))
_INVALID = ("InvalidRayClusterSpec", "InvalidRayClusterMetadata", "InvalidRayClusterStatus")
_SUBMITTER = {"cpu": "500m", "memory": "1Gi"}
PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def find_problems(plan: JobSpec) -> Iterator[str]:
    yield from find_entrypoint_problems(plan)
    name = plan.ray_cluster
    if name and not (LABEL.fullmatch(name) and len(name) <= _LONGEST_CLUSTER):
        yield (
            f"--ray-cluster {name[:80]!r}: the name of a RayCluster has lower-case letters, digits, "
            f"dashes, begins with a letter, and has at most {_LONGEST_CLUSTER} characters"
        )
    elif name and name == plan.name:
        yield f"--ray-cluster {name}: the job has that name; deleting it would delete the cluster"


def find_entrypoint_problems(plan: JobSpec) -> Iterator[str]:
    """Yield words of the command that two shells would change."""
    for word in _words(plan):
        if not PLAIN.fullmatch(word):
            yield (
                f"{word[:60]!r}: Ray hands a command through two shells, so its words may have only letters, "
                "digits and _@%+=:,./-; put what you want to run into a script in the image"
            )


def render(plan: JobSpec) -> Manifests:
    job = job_object(plan, API, "RayJob", _job_spec(plan))
    labels = job["metadata"]["labels"]
    labels.pop("kueue.x-k8s.io/queue-name", None)  # the cluster holds the quota
    labels[KIND_LABEL] = SUBMITTED_AS
    return Manifests(job) if plan.ray_cluster else Manifests(job, (_cluster(plan),))


def make_entrypoint(plan: JobSpec) -> str:
    """Return the entrypoint, made of words that passed `find_entrypoint_problems`."""
    return " ".join(_words(plan))


def _words(plan: JobSpec) -> tuple[str, ...]:
    program = plan.program
    restarts = ("--restarts", str(plan.restarts)) if program.keeps_run and plan.restarts else ()
    if program.once:
        return (*program.command, *restarts)
    place = ("--directory", program.directory) if program.directory else ()
    return (
        *(program.python, "-P", "-m", "trainyard", "step", "ray"),
        *("--num-nodes", str(plan.nodes), "--nproc-per-node", str(plan.processes_per_node)),
        *("--gpu-per-node", str(plan.resources.gpus), *place, *restarts, "--", *program.command),
    )


def _cluster(plan: JobSpec) -> dict[str, Any]:
    """Return the cluster, whose pods do not have the files and variables of the command."""
    program = Program("ray", (), directory=plan.program.directory)
    spec = ray_cluster_spec(replace(plan, run_id="", program=program))
    body = part_object(plan, API, "RayCluster", name=plan.name, spec=spec)
    if plan.queue:
        body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = plan.queue
    return body


def _job_spec(plan: JobSpec) -> dict[str, Any]:
    """Return a RayJob that carries its files and variables, because the cluster's pods do not have them."""
    placed = f"{SCRATCH}/{plan.name}-files"
    command = tuple(part.replace(FILES_DIRECTORY, placed) for part in plan.program.command)
    moved = replace(plan, program=replace(plan.program, command=command))
    variables = {"TRAINYARD_RUN_ID": plan.run_id or plan.name, "TRAINYARD_NETWORK": plan.network}
    variables |= {"TRAINYARD_OWNER": plan.owner, **actor_variables(plan)}
    if plan.program.files:
        files = {f"{placed}/{name}": text for name, text in plan.program.files.items()}
        variables["TRAINYARD_FILES"] = json.dumps(files)
    return {
        "entrypoint": make_entrypoint(moved),
        "clusterSelector": {"ray.io/cluster": plan.ray_cluster or plan.name},
        "runtimeEnvYAML": json.dumps({"env_vars": variables}),
        "submissionMode": "K8sJobMode",
        "submitterPodTemplate": submitter(plan),
    }


def actor_variables(plan: JobSpec) -> dict[str, str]:
    """Return the variables for the processes on all nodes, which do not inherit those of Ray's driver."""
    log = plan.program.nccl_log
    return nccl_log_variables(log, plan.environment) if log else {}


def ray_cluster_spec(plan: JobSpec) -> dict[str, Any]:
    """Return the cluster: a head, and a group of workers if there are more nodes."""
    of_head = pod_template(plan, "ray-head", command=False, in_pair=plan.nodes > 1)
    head = {"rayStartParams": {}, "template": of_head}
    spec: dict[str, Any] = {"headGroupSpec": head}
    if plan.ray_version:
        spec["rayVersion"] = plan.ray_version
    if plan.nodes > 1:
        count = plan.nodes - 1
        spec["workerGroupSpecs"] = [
            {
                "groupName": GROUP,
                "replicas": count,
                "minReplicas": count,
                "maxReplicas": count,
                "rayStartParams": {},
                "template": pod_template(plan, "ray-worker", command=False, in_pair=True),
            }
        ]
    return spec


def submitter(plan: JobSpec) -> dict[str, Any]:
    """Return the pod that submits the command to Ray and prints its log."""
    container = {
        "name": "ray-job-submitter",
        "image": plan.image,
        "resources": {"requests": dict(_SUBMITTER), "limits": dict(_SUBMITTER)},
        "securityContext": container_security(),
    }
    template = pod_template(replace(plan, zone=None, template={}), "ray-job-submitter", command=False)
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {
            key: value
            for key, value in template["spec"]["securityContext"].items()
            if not key.startswith("fsGroup")
        },
        "tolerations": template["spec"]["tolerations"],
    }
    metadata = {"labels": template["metadata"]["labels"], "annotations": dict(NOT_DISRUPTED)}
    return merge_fragment({"metadata": metadata, "spec": spec}, plan.template, "")


def read_status(observed: Observed) -> Reading:
    """Return the reading of a RayCluster; whether a command runs on it is not known."""
    cluster = observed.job or {}
    true, status = true_conditions(cluster), cluster.get("status") or {}
    wanted = count_ray_pods(cluster.get("spec") or {})
    refused = next((e for e in observed.events if e.get("reason") in _INVALID), None)
    if refused is not None and not status:
        return Reading(Phase.FAILED, message_of(refused), wanted, failure_class=FailureClass.CONFIGURATION)
    if "RayClusterSuspended" in true or field_of(cluster, "spec", "suspend") is True:
        return Reading(Phase.SUSPENDED, "it is suspended", wanted)
    if "ReplicaFailure" in true:
        return Reading(Phase.WAITING, message_of(true["ReplicaFailure"]), wanted)
    # The state stays `ready` while the head is created again.
    is_headed = conditions(cluster).get("HeadPodReady", {"status": "True"}).get("status") == "True"
    if status.get("state") == "ready" and is_headed:
        return Reading(Phase.RUNNING, "the RayCluster is ready", wanted)
    if not status:
        return Reading(Phase.NEW, NOT_ACTED, wanted)
    return Reading(Phase.WAITING, "the RayCluster is not ready", wanted)


def count_ray_pods(spec: Json) -> int | None:
    if "headGroupSpec" not in spec:
        return None
    return sum(number for number, _ in _ray_groups(spec, "minReplicas"))


def _ray_groups(spec: Json, limit: str) -> Iterator[tuple[int, Json]]:
    """Yield number and template of the pods of the head and of each group; `limit` counts where it scales."""
    key = limit if spec.get("enableInTreeAutoscaling") is True else "replicas"
    yield 1, field_of(spec, "headGroupSpec", "template") or {}
    for group in spec.get("workerGroupSpecs") or ():
        if not group.get("suspend"):
            number = count(group.get(key)) * count(group.get("numOfHosts"), 1)
            yield number, group.get("template") or {}


def find_misfits(cluster: Json, plan: JobSpec) -> Iterator[str]:
    """Yield the reasons why an existing RayCluster, made by somebody else, cannot run the plan."""
    groups = _ray_groups(cluster.get("spec") or {}, "maxReplicas")
    able = [(number, each["spec"]) for number, each in groups if _gpus_of(each) >= plan.resources.gpus]
    if (found := sum(number for number, _ in able)) < plan.nodes:
        each = f" with {plan.resources.gpus} GPUs" if plan.resources.gpus else ""
        yield f"it has {found} pod{'' if found == 1 else 's'}{each}, and --num-nodes is {plan.nodes}"
    repository = re.split(r"@|:(?!.*/)", plan.image)[0]
    for _, pod in able:
        container = pod["containers"][0]
        if plan.claim and plan.claim not in _claims_at(plan.mount_path, pod):
            yield f"one of its pods does not mount the claim {plan.claim} at {plan.mount_path}"
        if re.split(r"@|:(?!.*/)", str(container.get("image")))[0] != repository:
            yield f"its pods run the image {container.get('image')}, which --image-uri must name"


def _gpus_of(template: Json) -> int:
    containers: list[Json] = field_of(template, "spec", "containers") or [{}]
    return whole_number(str(field_of(containers[0], "resources", "limits", GPU) or 0)) or 0


def _claims_at(path: str, pod: Json) -> list[Any]:
    """Return the claims that the pod's Ray container mounts at `path`."""
    mounts, claims = pod["containers"][0].get("volumeMounts") or (), claims_of(pod)
    return [claims.get(each.get("name")) for each in mounts if each.get("mountPath") == path]


def make_trial_cluster(template: Json) -> dict[str, Any]:
    """Return the smallest cluster for a dry run."""
    return {"headGroupSpec": {"rayStartParams": {}, "template": template}}


def rank_of(pod: Json) -> int | None:
    """Return 0 for the head; other pods have no rank unless an indexed Job made them."""
    return 0 if read_labels(pod).get("ray.io/node-type") == "head" else completion_index(pod)


def is_helper(labels: Json) -> bool:
    """Return whether the pod submits the command to Ray."""
    return "batch.kubernetes.io/job-name" in labels and COMPLETION_INDEX not in labels


KIND = JobKind(
    name="raycluster",
    api_kind="RayCluster",
    apis=(NeededApi("ray.io", "v1", "rayclusters", INSTALLS),),
    controllers=(CONTROLLER,),
    trial_spec=lambda template, _: make_trial_cluster(template),
    parts=((API, "rayjobs"),),
    has_webhook=False,
    longest_name=LONGEST_NAME,
    find_problems=find_problems,
    render=render,
    read_status=read_status,
    pod_label=POD_LABEL,
    rank_of=rank_of,
    is_helper=is_helper,
    submitted_as=SUBMITTED_AS,
    on_ray=True,
)
