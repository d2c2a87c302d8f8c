"""Send a job with everything that it needs, so that all of it is deleted with the job.

    shared, parts, job ──apply──> the job's uid ──apply the parts once more, owned by it──> done

The parts come first because operators refuse a job whose parts are missing. Only then do they get their
owner. A process that dies between the two leaves parts without one, with the labels of the job: the next try
heals it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from trainyard.gateways.kubernetes.applying import apply_all, path_of

Json = dict[str, Any]


class Api(Protocol):
    """A cluster that objects can be applied to (`api.Api`)."""

    def get(self, path: str) -> Any: ...

    def apply(self, path: str, body: Json, *, dry_run: bool = False) -> tuple[int, Json]: ...


def find(api: Api, body: Mapping[str, Any]) -> Json | None:
    """What the cluster has under the name of `body`; None where it has nothing, or does not serve the
    kind."""
    path = path_of(api, body)
    found = None if path is None else api.get(path)
    return found if isinstance(found, dict) else None


def submit(api: Api, job: Json, *, parts: Iterable[Json] = (), shared: Iterable[Json] = ()) -> Json:
    """Apply everything and return the job as the API server has it.

    Raises PermissionRefusedError, ServiceError, or WaitTimeoutError for a kind that is not served.
    """
    needed = list(parts)
    apply_all(api, [*shared, *needed])
    made = apply_all(api, [job])[0]
    owner = reference_to(made)
    apply_all(api, [owned_by(part, owner) for part in needed])
    return made


def refusals(api: Api, objects: Iterable[Json]) -> list[str]:
    """What the API server would refuse, as it says it: every object is sent as a dry run."""
    found = []
    for body in objects:
        name = f"{body['kind']}/{body['metadata']['name']}"
        path = path_of(api, body)
        if path is None:
            found.append(f"{name}: the cluster does not serve {body['apiVersion']} {body['kind']}")
            continue
        status, answer = api.apply(path, body, dry_run=True)
        if status not in (200, 201):
            found.append(f"{name}: {' '.join(str(answer.get('message', '')).split())[:600]} ({status})")
    return found


def reference_to(made: Mapping[str, Any]) -> Json:
    """The owner reference to an object that the API server has."""
    meta = made["metadata"]
    return {
        "apiVersion": made["apiVersion"],
        "kind": made["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "blockOwnerDeletion": False,
    }


def owned_by(part: Mapping[str, Any], owner: Json) -> Json:
    """The object with its owner, which takes it along when it is deleted."""
    return {**part, "metadata": {**part["metadata"], "ownerReferences": [owner]}}
