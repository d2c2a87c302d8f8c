"""Apply objects to a cluster, server-side: create missing ones, and leave other owners' fields alone.

An object is tried again while the API server does not serve its kind yet, or while a webhook has not seen its
parts yet. In paths the name of an object stays one part, and is never empty: the path of an object without
its name is the path of the list, and `DELETE` there removes every object.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from trainyard.errors import ConfigError, WaitTimeoutError

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api

SERVED_SECONDS = 60.0
_PAUSE = 0.5
_NOT_YET = (404, 503)
UNSEEN = "must be created before"
"""Message of Trainer 2's webhook for a runtime that was just created, because it reads from a cache."""


def apply_all(
    api: "Api",
    objects: Iterable[Mapping[str, Any]],
    *,
    namespace: str = "default",
    seconds: float = SERVED_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> list[dict[str, Any]]:
    """Apply `objects` one after the other, up to the first refusal; return the API server's version of each.

    `namespace` is that of objects that name none.
    Raises PermissionRefusedError, ServiceError, or WaitTimeoutError for a kind that is never served.
    """
    deadline = clock() + seconds

    def apply(body: dict[str, Any]) -> dict[str, Any]:
        name = f"{body['kind']}/{(body.get('metadata') or {}).get('name')}"
        while True:
            path = path_of(api, body, namespace)
            status, answer = (404, {}) if path is None else api.apply(path, body)
            if status in (200, 201):
                return answer
            message = str(answer.get("message", ""))
            waits = status in _NOT_YET or (status == 403 and UNSEEN in message)
            is_late = clock() > deadline
            if not waits or (status == 404 and "namespaces" in message) or (is_late and status == 403):
                raise api.refusal(f"{name} was refused", status, answer)
            if is_late:
                kind = f"{body['apiVersion']} {body['kind']}"
                raise WaitTimeoutError(f"{name}: the cluster does not serve {kind}")
            wait(_PAUSE)

    return [apply(dict(body)) for body in objects]


def path_of(api: "Api", body: Mapping[str, Any], namespace: str = "default") -> str | None:
    """The path of the object; None while the cluster does not serve its kind."""
    version = str(body["apiVersion"])
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    served = api.get(root) or {}
    for resource in served.get("resources") or ():
        if resource.get("kind") == body["kind"] and "/" not in str(resource.get("name")):
            meta = body.get("metadata") or {}
            place = path_part(str(meta.get("namespace") or namespace))
            space = f"/namespaces/{place}" if resource.get("namespaced") else ""
            return f"{root}{space}/{resource['name']}/{path_part(str(meta['name']))}"
    return None


def path_part(name: str) -> str:
    """Return `name` as one part of a path. Raises ConfigError for a name that is no single part."""
    if name in ("", ".", ".."):
        raise ConfigError(f"{name!r} is not the name of an object in a cluster")
    return quote(name, safe="")
