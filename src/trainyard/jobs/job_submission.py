"""Send a job with everything that it needs, so that all of it is deleted with the job.

    shared, parts, job ──apply──> the job's uid ──apply the parts once more, owned by it──> done

The files of the program get one that names the job with its uid, which the run then has on record.

The parts come first because operators refuse a job whose parts are missing. They get their owner after the
job exists. A process that dies in between leaves parts without an owner but with the job's labels; the next
attempt completes them.
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trainyard.cluster.server_side_apply import apply_all, path_of
from trainyard.errors import ServiceError
from trainyard.jobs.state.reading import field_of
from trainyard.run.identity import JOB_FILE

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api

Json = dict[str, Any]


def find(api: "Api", body: Mapping[str, Any]) -> Json | None:
    """Return the cluster's object with the name of `body`; None if it or its kind does not exist."""
    path = path_of(api, body)
    found = None if path is None else api.get(path)
    return found if isinstance(found, dict) else None


def creator(api: "Api") -> str:
    """Return who sends, as the API server names the credentials, as a label; empty if it does not say."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer: Mapping[str, Any] = {}
    with suppress(ServiceError):  # then the job has no creator on record
        answer = api.review("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    name = str(field_of(answer, "status", "userInfo", "username") or "")
    # The session of a role is a person only with AWS's single sign-on; else it may be new at each login.
    name = re.sub(r"(:assumed-role/(?!AWSReservedSSO_)[^/]+)/.*", r"\1", name)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[-63:].strip("-._")


def submit(api: "Api", job: Json, *, parts: Iterable[Json] = (), shared: Iterable[Json] = ()) -> Json:
    """Apply everything and return the API server's version of the job.

    Raises PermissionRefusedError, ServiceError, or WaitTimeoutError for a kind that is not served.
    """
    needed = list(parts)
    apply_all(api, [*shared, *needed], namespace=job["metadata"]["namespace"])
    made = apply_all(api, [job])[0]
    owner = reference_to(made)
    apply_all(api, [with_owner(part, owner) for part in needed])
    return made


def refusals(api: "Api", objects: Iterable[Json], *, namespace: str = "default") -> list[str]:
    """Return the API server's refusals, in its own words: every object is sent as a dry run.

    `namespace` is that of objects that name none.
    """
    found = []
    for body in objects:
        name = f"{body['kind']}/{body['metadata']['name']}"
        path = path_of(api, body, namespace)
        if path is None:
            found.append(f"{name}: the cluster does not serve {body['apiVersion']} {body['kind']}")
            continue
        status, answer = api.apply(path, body, dry_run=True)
        if status not in (200, 201):
            found.append(f"{name}: {' '.join(str(answer.get('message', '')).split())[:600]} ({status})")
    return found


def reference_to(made: Mapping[str, Any]) -> Json:
    """Return the owner reference to an object of the API server."""
    meta = made["metadata"]
    return {
        "apiVersion": made["apiVersion"],
        "kind": made["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "blockOwnerDeletion": False,
    }


def with_owner(part: Mapping[str, Any], owner: Json) -> Json:
    """Return the object with an owner, which files name; when the owner is deleted, so is the object."""
    metadata = {**part["metadata"], "ownerReferences": [owner]}
    if part["kind"] != "ConfigMap":
        return {**part, "metadata": metadata}
    named = {key: owner[key] for key in ("kind", "name", "uid")} | {"namespace": metadata["namespace"]}
    return {**part, "metadata": metadata, "data": {**part.get("data", {}), JOB_FILE: json.dumps(named)}}
