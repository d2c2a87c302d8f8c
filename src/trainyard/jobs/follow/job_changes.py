"""Change jobs: cancel, delete with everything that belongs to them, submit again.

Two groups of objects belong to a job. The pods and Services of its operator are owned by it: the garbage
collector deletes them. The parts that we created, such as ConfigMaps and runtimes, have its label.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from trainyard.cluster.capacity import choose_zone
from trainyard.cluster.cluster_query import ClusterQuery
from trainyard.cluster.server_side_apply import UNSEEN, path_part
from trainyard.errors import (
    ConfigError,
    PermissionRefusedError,
    RunConflictError,
    ServiceError,
    ServiceTroubleError,
    WaitTimeoutError,
)
from trainyard.jobs.job_kind import Manifests, Observed
from trainyard.jobs.job_object import (
    BEFORE,
    CANCELLED,
    JOB_LABEL,
    KIND_LABEL,
    MANAGED_BY,
    RETRIES,
    RETRY_RECORD,
)
from trainyard.jobs.job_reader import FoundJob, JobReader
from trainyard.jobs.job_submission import submit
from trainyard.jobs.resubmission import avoid_nodes, first_name, make_resubmission, next_name, require_ended
from trainyard.jobs.state.pod_facts import whole_number
from trainyard.jobs.state.reading import Json, annotations_of, name_of, uid_of
from trainyard.jobs.state.state_machine import judge_job
from trainyard.watch.retry_decision import RetryClaim

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api

_DEACTIVATION = {"spec": {"active": False}}
"""Deactivates a Workload; if only the job were suspended, Kueue would start it again."""
_CONFIG_MAPS = ("/api/v1", "configmaps")
_OF_RAY = (("/apis/ray.io/v1", "rayjobs"), ("/apis/ray.io/v1", "rayclusters"))
_PODS = (("/api/v1", "pods"),)
_PAUSE = 0.5
_SEEN_SECONDS = 15.0
_DONE = (200, 201, 202)


@dataclass(frozen=True)
class NamedObject:
    """An object in the namespace of a job."""

    resource: str
    name: str
    path: str

    def __str__(self) -> str:
        return f"{self.resource}/{self.name}"


class JobEditor:
    """Changes one job."""

    def __init__(
        self,
        reader: JobReader,
        job: FoundJob,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._reader, self._api, self._job, self._clock, self._wait = reader, reader.api, job, clock, wait
        self._space = f"namespaces/{path_part(job.namespace)}"

    def cancel(self, *, dry_run: bool = False) -> list[str]:
        """Stop the pods of the job and record it; return what was done, or would be.

        Raises ConfigError if it has ended or its kind cannot be stopped, ServiceError if it is refused.
        """
        time_of_request = datetime.fromtimestamp(self._api.cluster_time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        observed = self._reader.observe(self._job)
        state = judge_job(observed)
        if state.ended and not state.holds_resources:
            raise ConfigError(f"{self._job.name} has ended already: {state.state}")
        record = {"metadata": {"annotations": {CANCELLED: time_of_request}}}
        return self._stop(observed, record, dry_run=dry_run)

    def stop(self) -> list[str]:
        """Stop the pods of a job that is sent again, without recording a cancellation; return what was done.

        Raises ConfigError if its kind cannot be stopped, ServiceError if it is refused.
        """
        return self._stop(self._reader.observe(self._job), {})

    def _stop(self, observed: Observed, record: dict[str, Any], *, dry_run: bool = False) -> list[str]:
        """Stop the job by its Workloads, or suspend it if it has none; return in words what that is."""
        workloads, job = observed.owned_of("Workload"), self._job
        change = record if workloads else {**record, **job.kind.suspension(job.raw)}
        if not dry_run:
            # The record comes last: a job that Kueue may not stop is not recorded as cancelled.
            for workload in workloads:
                self._patch(self._path_of_workload(workload), _DEACTIVATION)
            if change:
                self._patch(job.path, change)
        stops = [f"deactivate workloads/{name_of(workload)}" for workload in workloads]
        return stops or [f"suspend {self._own}"]

    def delete(self, *, seconds: float, dry_run: bool = False) -> list[str]:
        """Delete the job and the parts that we created with it; return what was deleted, or would be.

        The garbage collector deletes the rest, which is waited for. After a refusal the other parts are still
        deleted. Raises ServiceError if one is refused, WaitTimeoutError naming what remains after `seconds`.
        """
        deadline, options = self._clock() + seconds, {"propagationPolicy": "Background"}
        objects = self._named_parts()
        changes = [f"delete {each}" for each in (self._own, *objects)]
        if dry_run:
            return changes
        self._delete(self._own, {**options, "preconditions": {"uid": uid_of(self._job.raw)}})
        refusals: list[ServiceError] = []
        for each in objects:
            try:
                self._delete(each, options)
            except ServiceError as error:
                refusals.append(error)
        if refusals:
            raise refusals[0]
        while remaining := self._remaining_parts():
            if self._clock() > deadline:
                names = ", ".join(map(str, remaining[:10])) + (" …" if len(remaining) > 10 else "")
                raise WaitTimeoutError(
                    f"{self._own} is deleted; after {seconds:.0f} seconds this remains: {names}. "
                    "Pods of a lost node go when it comes back or its Node is deleted"
                )
            self._wait(_PAUSE)
        return changes

    def resubmission(self) -> Manifests:
        """Return the objects for `create`.

        Raises ConfigError if the job, or one that was submitted again from it, has not ended, ServiceError.
        """
        job = self._job
        require_ended(judge_job(self._reader.observe(job)))
        first = first_name(job.raw)
        for other in self._jobs_of_this_kind():
            if name_of(other) != job.name and first_name(other) == first:
                found = FoundJob(job.kind, job.namespace, name_of(other), other)
                require_ended(judge_job(self._reader.observe(found)))
        return self._next(self.next_name())

    def create(self, new: Manifests) -> None:
        """Create the job that follows this one, with its parts, unless somebody else has meanwhile.

        Parts of an attempt that was killed are used. Raises RunConflictError if another object has the name
        of the job, ServiceError if it is refused.
        """
        submit(self._api, new, self._create)

    def retry(self, claim: RetryClaim) -> Manifests:
        """The objects of a retry: under the claim's name, with its budget, away from its excluded nodes."""
        number = 1 + (whole_number(annotations_of(self._job.raw).get(RETRIES)) or 0)
        new = self._next(claim.next_name, claim, retries=number)
        new.job["metadata"]["annotations"][RETRY_RECORD] = claim.record.to_json()
        parts = tuple(avoid_nodes(part, claim.avoided) for part in new.parts)
        return Manifests(avoid_nodes(new.job, claim.avoided), parts)

    def _next(self, name: str, claim: RetryClaim | None = None, *, retries: int = 0) -> Manifests:
        """Return the objects of the job that follows this one as `name`, in a zone that is free for it."""
        job = self._job
        zone = zone_for_next(self._api, job, name, claim)
        return make_resubmission(job.kind, job.raw, self._parts(), name=name, retries=retries, zone=zone)

    @property
    def _own(self) -> NamedObject:
        return NamedObject(self._job.kind.api.resource, self._job.name, self._job.path)

    @property
    def _part_kinds(self) -> tuple[tuple[str, str], ...]:
        """Kinds of the parts that we create with the job, and copy when it is submitted again."""
        kind = self._job.kind
        own = _OF_RAY if kind.on_ray else ((f"/apis/{root}", resource) for root, resource in kind.parts)
        return (_CONFIG_MAPS, *own)

    @property
    def _labels(self) -> str:
        """The selector of our objects with the label of the job, except those of a job of another kind."""
        equal = ",".join(f"{k}={v}" for k, v in {**MANAGED_BY, JOB_LABEL: self._job.name}.items())
        return f"{equal},{KIND_LABEL} in ({self._job.kind.labelled_as})"

    def next_name(self) -> str:
        """Return the first free name for a job that follows this one. Raises ServiceError."""
        return next_name(self._job.kind, self._job.raw, map(name_of, self._jobs_of_this_kind()))

    def _jobs_of_this_kind(self) -> list[Json]:
        """Return the metadata of all jobs of the kind in the namespace."""
        answer = self._api.get(self._job.path_of(""), metadata_of="list") or {}
        return list(answer.get("items") or ())

    def _named_parts(self) -> list[NamedObject]:
        """Return the parts that we created with the job; those with the name of a stranger's are not its."""
        found = self._find_objects(self._part_kinds, self._labels) if self._job.is_ours else []
        return [each for each in found if each != self._own]

    def _parts(self) -> list[Json]:
        parts = [self._api.get(each.path) for each in self._named_parts()]
        return [part for part in parts if part is not None]

    def _path_of_workload(self, workload: Json) -> str:
        root = str(workload.get("apiVersion") or "kueue.x-k8s.io/v1beta2")
        return f"/apis/{root}/{self._space}/workloads/{path_part(name_of(workload))}"

    def _remaining_parts(self) -> list[NamedObject]:
        """Return the job, its parts and its pods, as far as they still exist."""
        found = self._api.get(self._own.path)
        remaining = [self._own] if found is not None and uid_of(found) == uid_of(self._job.raw) else []
        operators = f"{self._job.kind.pod_label}={self._job.name}"
        for selector in dict.fromkeys((self._job.pod_selector, operators)):
            if not selector.endswith("="):
                remaining += self._find_objects(_PODS, selector)
        return list(dict.fromkeys([*remaining, *self._named_parts()]))

    def _find_objects(self, kinds: Iterable[tuple[str, str]], selector: str) -> list[NamedObject]:
        """Return the objects of these kinds; we created none of a kind that we may not list."""
        found, query = list[NamedObject](), urlencode({"labelSelector": selector})
        for root, resource in kinds:
            path = f"{root}/{self._space}/{resource}"
            with suppress(PermissionRefusedError):
                answer = self._api.get(f"{path}?{query}", metadata_of="list") or {}
                names = map(name_of, answer.get("items") or ())
                found += [NamedObject(resource, name, f"{path}/{path_part(name)}") for name in names]
        return found

    def _delete(self, found: NamedObject, options: dict[str, Any]) -> None:
        status, answer = _send(lambda: self._api.delete(found.path, options))
        if status not in (*_DONE, 404):
            raise self._api.refusal(f"{found} cannot be deleted", status, answer)

    def _patch(self, path: str, body: dict[str, Any]) -> None:
        status, answer = self._api.merge(path, body)
        if status not in _DONE:
            raise self._api.refusal(f"{path.rpartition('/')[2]} cannot be changed", status, answer)

    def _create(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the job that follows this one, as created now or by somebody else."""
        path, name = self._job.path_of(""), f"{body['kind']}/{name_of(body)}"
        deadline = self._clock() + _SEEN_SECONDS
        while True:
            status, answer = _send(lambda: self._api.create(path, body))
            if status != 403 or UNSEEN not in str(answer.get("message")) or self._clock() >= deadline:
                break
            self._wait(_PAUSE)
        if status == 409:
            made = self._api.get(self._job.path_of(name_of(body))) or {}
            if annotations_of(made).get(BEFORE) == self._job.name:
                return made
            raise RunConflictError(
                f"{name} already exists, and does not follow {self._job.name}; delete one of them"
            )
        if status not in _DONE:
            raise self._api.refusal(f"{name} cannot be created", status, answer)
        return answer


def _send(change: Callable[[], tuple[int, dict[str, Any]]]) -> tuple[int, dict[str, Any]]:
    """Return the answer to a change, sent once more if it was lost: the second answer shows what was made."""
    try:
        return change()
    except ServiceTroubleError:
        return change()


def zone_for_next(api: "Api", job: FoundJob, name: str, claim: RetryClaim | None = None) -> str | None:
    """Return the zone for the job that follows this one as `name`; None for a job that needs none.

    Empty, which leaves the zone to the first pod, if the nodes may not be read. Raises ServiceError.
    """
    plan = job.plan
    if plan is None or plan.zone is None:
        return None
    avoided = [node.name for node in claim.avoided if node.strictly] if claim else ()
    usage = ClusterQuery(api, plan).usage()
    return choose_zone(usage, replace(plan, name=name), avoided=avoided) or ""
