"""Look at jobs: find them, their pods, the objects between the two, and their events.

Objects that may not be seen, or are not served, are left out; a state is judged from the rest.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from trainyard.errors import ConfigError, CredentialsRefusedError, ServiceError
from trainyard.gateways.kubernetes.api import Api
from trainyard.gateways.kubernetes.api_path import path_part
from trainyard.jobs.job_labels import JOB_LABEL, MANAGED_BY
from trainyard.jobs.state.job_state import JobState
from trainyard.jobs.state.kind_api import (
    KINDS_OF_JOBS,
    KindOfJob,
    kind_of_job,
    name_of,
    read_labels,
    uid_of,
)
from trainyard.jobs.state.observed import Observed
from trainyard.jobs.state.pod_facts import PodFacts, pod_facts
from trainyard.jobs.state.state_machine import judge_job

Json = Mapping[str, Any]
_KUEUE = ("/apis/kueue.x-k8s.io/v1beta2", "/apis/kueue.x-k8s.io/v1beta1")
_MOST_PODS_ASKED = 5
"""The number of pods whose own events are requested."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FoundJob:
    """A job that exists."""

    kind: KindOfJob
    namespace: str
    name: str
    raw: Json

    @property
    def place(self) -> dict[str, Any]:
        """The arguments that identify it: namespace, name and kind."""
        return {"namespace": self.namespace, "name": self.name, "kind": self.kind.name}

    @property
    def path(self) -> str:
        return self.path_of(self.name)

    def path_of(self, name: str) -> str:
        """The path of another job of this kind in the namespace; without a name, that of their list."""
        return self.kind.path(path_part(self.namespace), path_part(name) if name else "")

    @property
    def pod_selector(self) -> str:
        return self.kind.pod_selector(self.raw)


class JobLooking:
    """Looks at the jobs in one cluster."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._kueue: str | None = None

    def found(self, namespace: str, name: str, kind: str | None = None) -> FoundJob:
        """The job of this name. If a RayJob runs on a RayCluster of the same name, the RayJob is the job.

        Raises ConfigError if there is none, ServiceError if that cannot be known.
        """
        kinds = (kind_of_job(kind),) if kind else KINDS_OF_JOBS
        refused: ServiceError | None = None
        for each in kinds:
            try:
                raw = self.api.get(each.path(path_part(namespace), path_part(name)))
            except CredentialsRefusedError:
                raise
            except ServiceError as error:
                refused = error
                continue
            if raw is not None:
                return FoundJob(each, namespace, name, raw)
        if refused is not None:
            raise refused
        raise ConfigError(f"There is no job {name} in {namespace}; list shows those that are there")

    def jobs(self, namespace: str) -> list[FoundJob]:
        """The jobs that we submitted to a namespace; an empty name means all. Raises ServiceError."""
        selector = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())
        space, found = path_part(namespace) if namespace else "", list[FoundJob]()
        for kind in filter(self._serves, KINDS_OF_JOBS):
            with _left_out(f"{kind.api_kind}s are not listed", logging.WARNING):
                raws = self.api.whole_list(kind.path(space), dict, labelSelector=selector)
                found += [
                    FoundJob(kind, str(raw["metadata"]["namespace"]), name_of(raw), raw) for raw in raws
                ]
        return list(_without_clusters_of_jobs(found))

    def look(self, job: FoundJob) -> Observed:
        """Everything about one job, read again. Raises ServiceError if the job cannot be seen."""
        raw = self.api.get(job.path)
        if raw is None:
            return Observed(job.kind, job.namespace, job.name, None, now=self.api.cluster_time())
        return self.look_from(replace(job, raw=raw))

    def state(self, namespace: str, name: str, kind: str) -> JobState:
        """The present state of a job. Raises ConfigError if it does not exist."""
        return judge_job(self.look(self.found(namespace, name, kind)))

    def look_from(self, job: FoundJob) -> Observed:
        """Everything about a job whose object was just read."""
        return self.around(Observed(job.kind, job.namespace, job.name, job.raw, self.pods(job)))

    def around(self, observed: Observed) -> Observed:
        """This observation with the objects between the job and its pods, its events, and the time added."""
        owned = tuple(self._owned(observed)) if observed.job is not None else ()
        events = tuple(self._events(observed, owned))
        return replace(observed, owned=owned, events=events, now=self.api.cluster_time())

    def pods(self, job: FoundJob) -> tuple[PodFacts, ...]:
        path = f"/api/v1/namespaces/{path_part(job.namespace)}/pods"
        return tuple(self._listed(path, pod_facts, labelSelector=job.pod_selector))

    def raw_pods(self, job: FoundJob) -> tuple[Json, ...]:
        """The pods as the API returns them. Raises ServiceError."""
        path = f"/api/v1/namespaces/{path_part(job.namespace)}/pods"
        return self.api.whole_list(path, dict, labelSelector=job.pod_selector)

    def all_events(self, observed: Observed) -> list[Json]:
        """Every event about the job, its pods of all times, and the objects it owns. Raises ServiceError."""
        path = f"/api/v1/namespaces/{path_part(observed.namespace)}/events"
        names = {observed.name, *(pod.name for pod in observed.pods), *map(name_of, observed.owned)}

        def about(raw: dict[str, Any]) -> dict[str, Any] | None:
            involved = str((raw.get("involvedObject") or {}).get("name") or "")
            return raw if involved in names or involved.startswith(f"{observed.name}-") else None

        return list(self.api.whole_list(path, about))

    def _owned(self, observed: Observed) -> Iterator[Json]:
        space = f"namespaces/{path_part(observed.namespace)}"
        uids = [uid_of(observed.job or {})]
        if observed.kind.name == "trainjob":
            jobset = f"/apis/jobset.x-k8s.io/v1alpha2/{space}/jobsets/{path_part(observed.name)}"
            yield from self._one(jobset, "JobSet")
            selector = f"jobset.sigs.k8s.io/jobset-name={observed.name}"
            for raw in self._listed(f"/apis/batch/v1/{space}/jobs", dict, labelSelector=selector):
                yield {**raw, "kind": "Job"}
        if observed.kind.name == "rayjob":
            cluster = str(((observed.job or {}).get("status") or {}).get("rayClusterName") or "")
            if cluster:  # between two attempts there is none
                path = f"/apis/ray.io/v1/{space}/rayclusters/{path_part(cluster)}"
                for raw in self._one(path, "RayCluster"):
                    uids.append(uid_of(raw))
                    yield raw
        for uid in uids:
            for raw in self._workloads(space, uid):
                yield {**raw, "kind": "Workload"}

    def _workloads(self, space: str, uid: str) -> list[Json]:
        selector = f"kueue.x-k8s.io/job-uid={uid}"
        for root in _KUEUE if self._kueue is None else (self._kueue,):
            if not root:
                return []
            try:
                answer = self.api.get(f"{root}/{space}/workloads?{urlencode({'labelSelector': selector})}")
            except CredentialsRefusedError:
                raise
            except ServiceError as error:
                _logger.debug("Workloads are not seen: %s", error)
                return []
            if answer is not None:
                self._kueue = root
                return list(answer.get("items") or ())
        self._kueue = ""
        return []

    def _events(self, observed: Observed, owned: Iterable[Json]) -> Iterator[Json]:
        path = f"/api/v1/namespaces/{path_part(observed.namespace)}/events"
        names = dict.fromkeys((observed.name, *(name_of(raw) for raw in owned)))
        for name in names:
            yield from self._listed(path, dict, fieldSelector=f"involvedObject.name={name}")
        troubled = [p for p in observed.pods if p.phase in ("Pending", "Failed") and p.uid]
        for pod in troubled[:_MOST_PODS_ASKED]:
            yield from self._listed(path, dict, fieldSelector=f"involvedObject.uid={pod.uid}")

    def _one(self, path: str, kind: str) -> Iterator[Json]:
        with _left_out(f"{path} is not seen"):
            found = self.api.get(path)
            if found is not None:
                yield {**found, "kind": kind}

    def _listed(self, path: str, reduce: Any, **query: str) -> Iterator[Any]:
        with _left_out(f"{path} is not seen"):
            yield from self.api.whole_list(path, reduce, **query)

    def _serves(self, kind: KindOfJob) -> bool:
        answer = self.api.get(f"/apis/{kind.group}/{kind.version}") or {}
        return any(r.get("name") == kind.resource for r in answer.get("resources") or ())


@contextmanager
def _left_out(message: str, level: int = logging.DEBUG) -> Iterator[None]:
    """Log and leave out what may not be seen, unless our credentials were refused."""
    try:
        yield
    except CredentialsRefusedError:
        raise
    except ServiceError as error:
        _logger.log(level, "%s: %s", message, error)


def _without_clusters_of_jobs(found: list[FoundJob]) -> Iterator[FoundJob]:
    """Leave out the RayClusters that our RayJobs run on."""
    on_ray = {read_labels(job.raw).get(JOB_LABEL) for job in found if job.kind.name == "rayjob"}
    for job in found:
        if job.kind.name != "raycluster" or read_labels(job.raw).get(JOB_LABEL) not in on_ray:
            yield job
