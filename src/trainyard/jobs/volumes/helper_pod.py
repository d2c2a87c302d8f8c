"""Mount a claim in a small temporary pod, to read the files of a volume that no pod has mounted.

The pod mounts the claim read-only, has no rights in the cluster, and ends by itself after some hours if its
creator dies. If a running pod mounts the claim already, that one is used, because a volume of one node can
have no other pod.
"""

import json
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from trainyard.cluster.object_path import path_part
from trainyard.errors import ConfigError, PermissionRefusedError, ServiceError, WaitTimeoutError
from trainyard.jobs.job_labels import MANAGED_BY
from trainyard.jobs.pod_template import NO_SIDECAR
from trainyard.jobs.volumes.place import Place

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api

Json = Mapping[str, Any]
MOUNT = "/volume"
_LABEL = "trainyard.dev/helper"
_LIVES_SECONDS = 6 * 3600
_START_SECONDS = 300.0
_PAUSE = 0.5
_HOPELESS = ("ErrImageNeverPull", "InvalidImageName", "ImagePullBackOff", "CreateContainerConfigError")
_DONE = (200, 201, 202)
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MountedVolume:
    """A container that mounts a volume."""

    place: Place
    path: str
    """The folder where the volume is mounted."""


@dataclass(frozen=True)
class HelperPod:
    """Settings of a helper pod."""

    image: str
    """An image with Python; empty: only an existing pod is used."""
    user: int | None = None
    seconds: float = _START_SECONDS
    """Seconds for the start, including the pull of the image."""


@contextmanager
def mount_claim(
    api: "Api",
    namespace: str,
    claim: str,
    helper: HelperPod,
    *,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[MountedVolume]:
    """Yield a running pod that mounts the claim, or a helper, which is removed at the end.

    Raises ConfigError if the claim does not exist or no image is known, ServiceError, WaitTimeoutError.
    """
    if (
        api.get(f"/api/v1/namespaces/{path_part(namespace)}/persistentvolumeclaims/{path_part(claim)}")
        is None
    ):
        raise ConfigError(f"there is no PersistentVolumeClaim {claim} in {namespace}")
    there = pod_of_claim(api, namespace, claim)
    if there is not None:
        yield there
        return
    if not helper.image:
        raise ConfigError(
            f"no running pod mounts {claim}; set --image to an image with Python, for a pod that reads it"
        )
    pods = f"/api/v1/namespaces/{path_part(namespace)}/pods"
    _remove_ended_helpers(api, pods)
    name = f"trainyard-look-{secrets.token_hex(4)}"
    status, answer = api.create(pods, _body(name, claim, helper))
    if status not in _DONE:
        raise api.refusal(f"the pod {name} cannot be created", status, answer)
    try:
        why, deadline = "no node has accepted it", clock() + helper.seconds
        while (reason := _why_not_running(api, f"{pods}/{name}", name)) is not None:
            why = reason or why
            if clock() > deadline:
                raise WaitTimeoutError(
                    f"the pod {name} that was to read the volume did not start in {helper.seconds:.0f} s: "
                    f"{why}"
                )
            wait(_PAUSE)
        yield MountedVolume(Place(namespace, name, "look"), MOUNT)
    finally:
        with suppress(ServiceError):
            api.delete(f"{pods}/{name}", {"gracePeriodSeconds": 0})


def pod_of_claim(api: "Api", namespace: str, claim: str) -> MountedVolume | None:
    """Return a running container that mounts the complete claim; None if none can be seen."""
    path = f"/api/v1/namespaces/{path_part(namespace)}/pods"
    try:
        raws = api.list_all(path, dict, fieldSelector="status.phase=Running")
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


def _mounts(raw: Json, claim: str) -> Iterator[MountedVolume]:
    spec, meta = raw.get("spec") or {}, raw["metadata"]
    volumes = {
        v["name"]
        for v in spec.get("volumes") or ()
        if (v.get("persistentVolumeClaim") or {}).get("claimName") == claim
    }
    running = {
        s["name"]
        for s in (raw.get("status") or {}).get("containerStatuses") or ()
        if "running" in (s.get("state") or {})
    }
    for container in spec.get("containers") or ():
        for mount in container.get("volumeMounts") or ():
            complete = not mount.get("subPath") and not mount.get("subPathExpr")
            if mount.get("name") in volumes and complete and container["name"] in running:
                place = Place(str(meta["namespace"]), str(meta["name"]), str(container["name"]))
                yield MountedVolume(place, str(mount["mountPath"]))


def _body(name: str, claim: str, helper: HelperPod) -> dict[str, Any]:
    waits = f"import time;time.sleep({_LIVES_SECONDS})"
    security: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    container_security: dict[str, Any] = {"allowPrivilegeEscalation": False}
    if helper.user is not None:  # else it stays root, to read files of a trainer that ran as root
        security |= {"runAsUser": helper.user, "runAsGroup": helper.user}
        container_security["capabilities"] = {"drop": ["ALL"]}
    container = {
        "name": "look",
        "image": helper.image,
        "command": ["python3", "-c", waits],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "volumeMounts": [{"name": "volume", "mountPath": MOUNT, "readOnly": True}],
        "securityContext": container_security,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
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
            "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
        },
    }


def _why_not_running(api: "Api", path: str, name: str) -> str | None:
    """Return what the pod waits for, empty if unknown.

    None once it runs. Raises ServiceError if it cannot.
    """
    raw = api.get(path) or {}
    status = raw.get("status") or {}
    if status.get("phase") == "Running":
        return None
    if status.get("phase") in ("Succeeded", "Failed") or not raw:
        raise ServiceError(
            f"the pod {name} that was to read the volume has ended: {json.dumps(status)[:300]}"
        )
    why = ""
    for each in status.get("containerStatuses") or ():
        waiting = (each.get("state") or {}).get("waiting") or {}
        why = f"{waiting.get('reason')}: {waiting.get('message', '')}"[:300] if waiting else why
        if waiting.get("reason") in _HOPELESS:
            raise ServiceError(f"the pod {name} that was to read the volume cannot start: {why}")
    return why


def _remove_ended_helpers(api: "Api", pods: str) -> None:
    """Remove helpers that have ended and whose creator was killed."""
    with suppress(ServiceError):
        selector = urlencode({"labelSelector": f"{_LABEL}=look"})
        for raw in (api.get(f"{pods}?{selector}") or {}).get("items") or ():
            if (raw.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                api.delete(f"{pods}/{path_part(raw['metadata']['name'])}", {})
