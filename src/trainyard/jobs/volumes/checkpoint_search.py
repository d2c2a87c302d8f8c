"""Find the folder of a job's checkpoints, and its newest complete checkpoint.

A running pod that mounts the claim is used, because a volume of one node can have no other pod. Else a small
temporary pod reads it: it mounts the claim read-only, has no rights in the cluster, and ends by itself after
some hours if its creator dies.
"""

import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from trainyard.cluster.pod_fragment import merge_fragment
from trainyard.cluster.server_side_apply import path_part
from trainyard.errors import (
    ConfigError,
    PermissionRefusedError,
    ServiceError,
    TrainyardError,
    WaitTimeoutError,
)
from trainyard.jobs.job_object import MANAGED_BY
from trainyard.jobs.job_reader import FoundJob, JobReader
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.pod_template import NO_SIDECAR
from trainyard.jobs.state.pod_facts import Place
from trainyard.jobs.state.reading import Json, claims_of
from trainyard.jobs.volumes.volume_source import VolumeSource
from trainyard.programs.checkpoints.checkpoint_formats import find_checkpoints, newest_step

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api

MOUNT = "/volume"
_LABEL = "trainyard.dev/helper"
# Kubernetes lets every pod stay on a lost node for five minutes unless the pod names these taints itself, and
# its scheduler then puts new pods there too. The taints have no value, so that this tolerates none of them.
_OFF_LOST_NODES = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Equal", "value": "never", "effect": "NoExecute"}
    for name in ("not-ready", "unreachable")
]
_LIVES_SECONDS = 6 * 3600
_PAUSE = 0.5
_HOPELESS = ("ErrImageNeverPull", "InvalidImageName", "ImagePullBackOff", "CreateContainerConfigError")
_DONE = (200, 201, 202)
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


@contextmanager
def open_found_folder(
    api: "Api",
    namespace: str,
    *,
    pod: str = "",
    claim: str = "",
    job: str = "",
    kind: str | None = None,
    path: str = "",
    image: str = "",
    python: str = "python3",
    seconds: float = 300.0,
) -> Iterator[VolumeSource]:
    """Give access to a folder of checkpoints, of a pod, a claim or a job and its claim, while the body runs.

    `path` is absolute for a pod, for a claim relative to its root, for a job relative to its folder. A helper
    pod of this `image` has `seconds` to start. Raises ConfigError if the folder does not exist, ServiceError,
    WaitTimeoutError.
    """
    if pod:
        place = Place(namespace, pod)
        require_running(api, place)
        yield VolumeSource(api, place, path, python=python)
        return
    user, template = None, {}
    if job:
        plan = plan_of(JobReader(api).find_job(namespace, job, kind))
        claim, path = plan.claim, path or job_checkpoint_folder(plan)
        if not claim:
            raise ConfigError(f"{job} has no claim for checkpoints; name its pod with --pod and --path")
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
        with open_found_folder(api, job.namespace, job=job.name, kind=job.kind.name) as source:
            return newest_step(find_checkpoints(source.listing()))
    except TrainyardError as error:
        _logger.warning("the newest checkpoint of %s is not known: %s", job.name, error)
        return None


@contextmanager
def mount_claim(
    api: "Api",
    namespace: str,
    claim: str,
    *,
    image: str,
    user: int | None,
    seconds: float,
    template: Json,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[Place, str]]:
    """Yield a container that mounts the claim, and where: of a running pod, or of a helper for this time.

    Without an `image` with Python only an existing pod is used. A helper may take `seconds` to start,
    including the pull of the image; `template` is the fragment of the job's pods. Raises ConfigError if the
    claim does not exist or no image is known, ServiceError, WaitTimeoutError.
    """
    space = f"/api/v1/namespaces/{path_part(namespace)}"
    pods = f"{space}/pods"
    if api.get(f"{space}/persistentvolumeclaims/{path_part(claim)}") is None:
        raise ConfigError(f"there is no PersistentVolumeClaim {claim} in {namespace}")
    if (there := _running_mount(api, pods, claim)) is not None:
        yield there
        return
    if not image:
        raise ConfigError(
            f"no running pod mounts {claim}; set --image to an image with Python, for a pod that reads it"
        )
    _remove_ended_helpers(api, pods)
    name = f"trainyard-look-{secrets.token_hex(4)}"
    body = helper_pod(name, claim, image, user=user, template=template)
    status, answer = api.create(pods, body)
    if status not in _DONE:
        raise api.refusal(f"the pod {name} cannot be created", status, answer)
    try:
        why, deadline = "no node has accepted it", clock() + seconds
        while (reason := _why_not_running(api, f"{pods}/{name}")) is not None:
            why = reason or why
            if clock() > deadline:
                raise WaitTimeoutError(
                    f"the pod {name} that was to read the volume did not start in {seconds:.0f} s: {why}"
                )
            wait(_PAUSE)
        yield Place(namespace, name, "look"), MOUNT
    finally:
        with suppress(ServiceError):
            api.delete(f"{pods}/{name}", {"gracePeriodSeconds": 0})


def _running_mount(api: "Api", pods: str, claim: str) -> tuple[Place, str] | None:
    """Return a running container that mounts the complete claim, and where; None if none can be seen."""
    try:
        raws = api.list_all(pods, dict, fieldSelector="status.phase=Running")
    except PermissionRefusedError:
        return None
    found = (m for raw in raws if not raw["metadata"].get("deletionTimestamp") for m in _mounts(raw, claim))
    return next(found, None)


def require_running(api: "Api", place: Place) -> None:
    """Raise ConfigError if the pod does not exist or does not run."""
    raw = api.get(f"/api/v1/namespaces/{path_part(place.namespace)}/pods/{path_part(place.pod)}")
    if raw is None:
        raise ConfigError(f"there is no pod {place.pod} in {place.namespace}")
    phase = str((raw.get("status") or {}).get("phase"))
    if phase != "Running":
        raise ConfigError(
            f"the pod {place.pod} is {phase}; name a running pod, or read its volume with --claim"
        )


def _mounts(raw: Json, claim: str) -> Iterator[tuple[Place, str]]:
    spec, meta = raw.get("spec") or {}, raw["metadata"]
    claims = claims_of(spec)
    running = {
        s["name"]
        for s in (raw.get("status") or {}).get("containerStatuses") or ()
        if "running" in (s.get("state") or {})
    }
    for container in spec.get("containers") or ():
        for mount in container.get("volumeMounts") or ():
            complete = not mount.get("subPath") and not mount.get("subPathExpr")
            if claims.get(mount.get("name")) == claim and complete and container["name"] in running:
                place = Place(str(meta["namespace"]), str(meta["name"]), str(container["name"]))
                yield place, str(mount["mountPath"])


def helper_pod(name: str, claim: str, image: str, *, user: int | None, template: Json) -> dict[str, Any]:
    waits = f"import time;time.sleep({_LIVES_SECONDS})"
    security: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    container_security: dict[str, Any] = {"allowPrivilegeEscalation": False}
    if user is not None:  # else it stays root, to read files of a trainer that ran as root
        security |= {"runAsUser": user, "runAsGroup": user}
        container_security["capabilities"] = {"drop": ["ALL"]}
    container = {
        "name": "look",
        "image": image,
        "command": ["python3", "-c", waits],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "volumeMounts": [{"name": "volume", "mountPath": MOUNT, "readOnly": True}],
        "securityContext": container_security,
    }
    pod = {
        "metadata": {"name": name, "labels": {**MANAGED_BY, **NO_SIDECAR, _LABEL: "look"}},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": claim}}],
            "restartPolicy": "Never",
            "activeDeadlineSeconds": _LIVES_SECONDS,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": security,
            "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}, *_OFF_LOST_NODES],
        },
    }
    return {"apiVersion": "v1", "kind": "Pod", **merge_fragment(pod, template, "")}


def _why_not_running(api: "Api", path: str) -> str | None:
    """Return what the pod waits for, empty if unknown, None once it runs. Raises ServiceError."""
    status = (api.get(path) or {"status": {"phase": "Failed"}}).get("status") or {}
    if status.get("phase") == "Running":
        return None
    states = (each.get("state") or {} for each in status.get("containerStatuses") or ())
    waiting: Json = next((state["waiting"] for state in states if state.get("waiting")), {})
    if status.get("phase") in ("Succeeded", "Failed") or waiting.get("reason") in _HOPELESS:
        name, why = path.rpartition("/")[2], json.dumps(status)[:300]
        raise ServiceError(f"the pod {name} that was to read the volume cannot run: {why}")
    return f"{waiting.get('reason')}: {waiting.get('message', '')}"[:300] if waiting else ""


def _remove_ended_helpers(api: "Api", pods: str) -> None:
    """Remove helpers that have ended and whose creator was killed."""
    with suppress(ServiceError):
        selector = urlencode({"labelSelector": f"{_LABEL}=look"})
        for raw in (api.get(f"{pods}?{selector}") or {}).get("items") or ():
            if (raw.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                api.delete(f"{pods}/{path_part(raw['metadata']['name'])}", {})
