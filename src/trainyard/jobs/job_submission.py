"""Send a job with everything that it needs, so that all of it is deleted with the job.

    shared, parts, job ──apply──> the job's uid ──apply the parts once more, owned by it──> done

The files of the program get one that names the job with its uid, which the run then has on record.

The parts come first because operators refuse a job whose parts are missing. They get their owner after the
job exists. A process that dies in between leaves parts without an owner but with the job's labels; the next
attempt completes them.

A job that exists under the name is compared with the plan first. With the same plan it is followed from where
it is; with another plan it is reported with the differences and not changed.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trainyard.cluster.server_side_apply import apply_all, path_of
from trainyard.errors import ConfigError, ServiceError
from trainyard.jobs.job_kind import Manifests
from trainyard.jobs.job_object import JOB_LABEL, KIND_LABEL, MANAGED_BY, PLAN, recorded_plan
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.kinds import EVERY_KIND, ray_cluster
from trainyard.jobs.kinds.ray_cluster import find_misfits
from trainyard.jobs.state.reading import annotations_of, field_of, read_labels
from trainyard.run.identity import JOB_FILE

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api

Json = dict[str, Any]
_BY_NODES = ("cpu_millis", "memory_mib", "hugepages_mib", "shared_memory_mib")
"""Resources that follow from the nodes' present state, and may differ between two submissions of a job."""
_BY_CHECKOUT = ("commit", "dirty", "version")
"""Facts of the checkout: the same configuration, sent from another checkout, is the same job."""
_ANOTHER_NAME = "Nothing was sent. Use another --job-name, or delete that job first"


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


def submit(api: "Api", manifests: Manifests, make: Callable[[Json], Json] | None = None) -> Json:
    """Apply everything and return the API server's version of the job, which `make` may create instead.

    Raises PermissionRefusedError, ServiceError, or WaitTimeoutError for a kind that is not served.
    """
    job = manifests.job
    apply_all(api, manifests.before_job, namespace=job["metadata"].get("namespace") or "default")
    made = make(job) if make else apply_all(api, [job])[0]
    apply_all(api, [_owned_by(made, part) for part in manifests.parts])
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


def _owned_by(job: Json, part: Json) -> Json:
    """Return the part with `job` of the API server as its owner, whose name and uid are in files too."""
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": name, "uid": uid}
    metadata = {**part["metadata"], "ownerReferences": [{**owner, "blockOwnerDeletion": False}]}
    if part["kind"] != "ConfigMap":
        return {**part, "metadata": metadata}
    named = {"kind": job["kind"], "name": name, "uid": uid, "namespace": metadata["namespace"]}
    return {**part, "metadata": metadata, "data": {**part.get("data", {}), JOB_FILE: json.dumps(named)}}


def is_deployed(find: Callable[[Json], Json | None], plan: JobSpec, manifests: Manifests) -> bool:
    """Return whether the planned job exists; `find` returns the cluster's object under an object's name.

    Raises ConfigError if an object of that name exists and differs from the plan; it is not changed.
    """
    found = find(manifests.job)
    if found is not None:
        _require_same_plan(found, plan)
        return True
    _require_free_names(find, manifests, plan)
    return False


def require_ray_cluster(find: Callable[[Json], Json | None], plan: JobSpec, manifests: Manifests) -> None:
    """Raise ConfigError if the RayCluster that a new job names does not exist, or cannot run it."""
    if not plan.ray_cluster or find(manifests.job) is not None:
        return
    metadata = {"name": plan.ray_cluster, "namespace": plan.namespace}
    found = find({"apiVersion": ray_cluster.API, "kind": "RayCluster", "metadata": metadata})
    misfits = ["there is none"] if found is None else [*dict.fromkeys(find_misfits(found, plan))]
    if misfits:
        raise ConfigError(
            f"--ray-cluster {plan.ray_cluster}: it cannot run this job: {'; '.join(misfits)}. Nothing was "
            "sent. Name another RayCluster, or omit it for one of the job's own"
        )


def _require_free_names(find: Callable[[Json], Json | None], manifests: Manifests, plan: JobSpec) -> None:
    """Raise ConfigError if a job of another kind, or a part of one, has the name already.

    Parts are found by the job's name, so two jobs with one name would overwrite and delete each other's.
    """
    own = {(part["kind"], part["metadata"]["name"]) for part in manifests.all}
    for kind in EVERY_KIND.values():
        metadata = {"name": plan.name, "namespace": plan.namespace}
        other = {"apiVersion": kind.api.group_version, "kind": kind.api_kind, "metadata": metadata}
        if (kind.api_kind, plan.name) not in own and find(other) is not None:
            raise ConfigError(f"{kind.api_kind} {plan.name} already exists. {_ANOTHER_NAME}")
    for part in manifests.parts:
        found = find(part)
        if found is not None and not _is_part(found, part):
            name = f"{part['kind']} {part['metadata']['name']}"
            raise ConfigError(f"{name} already exists, and is not a part of this job. {_ANOTHER_NAME}")


def _is_part(found: Json, part: Json) -> bool:
    """Return whether `found` was created as this part of a job with the same name and kind."""
    there, ours = read_labels(found), read_labels(part)
    return all(there.get(label) == ours[label] for label in (*MANAGED_BY, JOB_LABEL, KIND_LABEL))


def _require_same_plan(found: Json, plan: JobSpec) -> None:
    """Raise ConfigError if `found` is another job than `plan`."""
    name = f"{found.get('kind')} {plan.name} in {plan.namespace}"
    if PLAN not in annotations_of(found):
        raise ConfigError(f"{name} already exists, and was not made by Trainyard. {_ANOTHER_NAME}")
    if (recorded := recorded_plan(annotations_of(found))) is None:
        raise ConfigError(f"{name} already exists, with a plan that cannot be read. {_ANOTHER_NAME}")
    before, now = _comparable_plan(recorded.to_json()), _comparable_plan(plan.record())
    different = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
    if different:
        raise ConfigError(
            f"{name} already exists, with another plan ({', '.join(different)}). {_ANOTHER_NAME}"
        )


def _comparable_plan(found: dict[str, Any]) -> dict[str, Any]:
    """Return a plan's record as flat keys, without those that may differ when one job is sent twice."""
    found.pop("run_id")  # of its own in each command that sends
    found.pop("owner")  # anybody may follow a job that runs
    found.pop("shared_claim")  # follows from the claim, which the cluster may not have shown
    found.pop("zone")  # chosen by what is free
    for name in _BY_NODES:
        found["resources"].pop(name)
    for name in _BY_CHECKOUT:
        found["provenance"].pop(name, None)
    flat: dict[str, Any] = {}
    for key, value in found.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{part}": inner for part, inner in value.items()}
        else:
            flat[key] = value
    return flat
