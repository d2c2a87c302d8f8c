"""Apply objects to a cluster, server-side: create missing ones, and leave other owners' fields alone.

An object is tried again while the API server does not serve its kind yet, or while a webhook has not seen its
parts yet.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from trainyard.errors import WaitTimeoutError
from trainyard.gateways.kubernetes.api import refusal
from trainyard.gateways.kubernetes.api_path import path_part

SERVED_SECONDS = 60.0
_PAUSE = 0.5
_NOT_YET = (404, 503)
UNSEEN = "must be created before"
"""Message of Trainer 2's webhook for a runtime that was just created, because it reads from a cache."""


class ObjectApi(Protocol):
    """A cluster that objects can be applied to (`api.Api`)."""

    def get(self, path: str) -> Any: ...

    def apply(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]: ...


def apply_all(
    api: ObjectApi, objects: Iterable[Mapping[str, Any]], *, seconds: float = SERVED_SECONDS
) -> list[dict[str, Any]]:
    """Apply `objects` one after the other, up to the first refusal; return the API server's version of each.

    Raises PermissionRefusedError, ServiceError, or WaitTimeoutError for a kind that is never served.
    """
    deadline = time.monotonic() + seconds
    return [_apply(api, dict(body), deadline) for body in objects]


def _apply(api: ObjectApi, body: dict[str, Any], deadline: float) -> dict[str, Any]:
    meta = body.get("metadata") or {}
    name = f"{body['kind']}/{meta.get('name')}"
    while True:
        path = path_of(api, body)
        status, answer = (404, {}) if path is None else api.apply(path, body)
        if status in (200, 201):
            return answer
        message = str(answer.get("message", ""))
        waits = status in _NOT_YET or (status == 403 and UNSEEN in message)
        is_late = time.monotonic() > deadline
        if not waits or (status == 404 and "namespaces" in message) or (is_late and status == 403):
            raise refusal(f"{name} was refused", status, answer)
        if is_late:
            raise WaitTimeoutError(f"{name}: the cluster does not serve {body['apiVersion']} {body['kind']}")
        time.sleep(_PAUSE)


def path_of(api: ObjectApi, body: Mapping[str, Any]) -> str | None:
    """The path of the object; None while the cluster does not serve its kind."""
    version = str(body["apiVersion"])
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    served = api.get(root) or {}
    for resource in served.get("resources") or ():
        if resource.get("kind") == body["kind"] and "/" not in str(resource.get("name")):
            meta = body.get("metadata") or {}
            place = path_part(str(meta.get("namespace") or "default"))
            space = f"/namespaces/{place}" if resource.get("namespaced") else ""
            return f"{root}{space}/{resource['name']}/{path_part(str(meta['name']))}"
    return None
