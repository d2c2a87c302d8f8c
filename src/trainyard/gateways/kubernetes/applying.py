"""Apply objects to a cluster, server-side: what is missing is created, what others own is left alone.

An object of a kind that was defined a moment ago is tried again until the API server serves it, and one whose
webhook has not seen its parts yet until it has.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from trainyard.errors import PermissionRefusedError, ServiceError, WaitTimeoutError

SERVED_SECONDS = 60.0
_PAUSE = 0.5
_NOT_YET = (404, 503)
_UNSEEN = "must be created before"
"""Said by the webhook of Trainer 2 about a runtime that was created a moment ago: it reads from a cache."""


class Api(Protocol):
    """A cluster that objects can be applied to (`api.Api`)."""

    def get(self, path: str) -> Any: ...

    def apply(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]: ...


def apply_all(
    api: Api, objects: Iterable[Mapping[str, Any]], *, seconds: float = SERVED_SECONDS
) -> list[dict[str, Any]]:
    """Apply `objects` one after the other; at the first that is refused, the rest is left.

    Returns what the API server made of each.

    Raises PermissionRefusedError, ServiceError, or WaitTimeoutError for a kind that is never served.
    """
    deadline = time.monotonic() + seconds
    return [_apply(api, dict(body), deadline) for body in objects]


def _apply(api: Api, body: dict[str, Any], deadline: float) -> dict[str, Any]:
    meta = body.get("metadata") or {}
    name = f"{body['kind']}/{meta.get('name')}"
    while True:
        path = path_of(api, body)
        status, answer = (404, {}) if path is None else api.apply(path, body)
        if status in (200, 201):
            return answer
        message = str(answer.get("message", ""))
        waits = status in _NOT_YET or (status == 403 and _UNSEEN in message)
        if not waits or (status == 404 and "namespaces" in message):
            kind = PermissionRefusedError if status == 403 else ServiceError
            raise kind(f"{name} was refused ({status}): {message[:400]}")
        if time.monotonic() > deadline:
            if status == 403:
                raise PermissionRefusedError(f"{name} was refused ({status}): {message[:400]}")
            raise WaitTimeoutError(f"{name}: the cluster does not serve {body['apiVersion']} {body['kind']}")
        time.sleep(_PAUSE)


def path_of(api: Api, body: Mapping[str, Any]) -> str | None:
    """Where the object belongs; None while the cluster does not serve its kind."""
    version = str(body["apiVersion"])
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    served = api.get(root) or {}
    for resource in served.get("resources") or ():
        if resource.get("kind") == body["kind"] and "/" not in str(resource.get("name")):
            meta = body.get("metadata") or {}
            space = f"/namespaces/{meta.get('namespace') or 'default'}" if resource.get("namespaced") else ""
            return f"{root}{space}/{resource['name']}/{meta['name']}"
    return None
