"""Read jobs: find them, their pods, the objects between the two, and their events.

Objects that may not be seen, or are not served, are left out; a state is judged from the rest.
"""

import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from trainyard.cluster.api_objects import node_of
from trainyard.cluster.server_side_apply import path_part
from trainyard.cluster.snapshot import ZONE, Node
from trainyard.errors import ConfigError, CredentialsRefusedError, ServiceError
from trainyard.jobs.job_kind import JobKind, Observed, OwnedObjects
from trainyard.jobs.job_object import JOB_LABEL, recorded_plan
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.kinds import EVERY_KIND, KINDS, find_kind
from trainyard.jobs.state.job_state import JobState
from trainyard.jobs.state.pod_facts import PodFacts, pod_facts
from trainyard.jobs.state.reading import (
    Json,
    annotations_of,
    count,
    event_time,
    name_of,
    one_line,
    read_labels,
    time_of,
    uid_of,
)
from trainyard.jobs.state.state_machine import judge_job
from trainyard.run.suggested_commands import trainyard_command

if TYPE_CHECKING:
    from trainyard.gateways.kubernetes.api import Api

_KUEUE = ("/apis/kueue.x-k8s.io/v1beta2", "/apis/kueue.x-k8s.io/v1beta1")
_MOST_PODS_ASKED = 5
"""The number of pods whose own events are requested."""
_MOST_SINGLE_NODES = 16
"""More nodes than this are read with one list of all nodes."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FoundJob:
    """A job that exists."""

    kind: JobKind
    namespace: str
    name: str
    raw: Json

    @property
    def is_ours(self) -> bool:
        """Return whether Trainyard sent it. A manifest that somebody copied has the name of another job."""
        return read_labels(self.raw).get(JOB_LABEL) == self.name

    @property
    def place(self) -> dict[str, Any]:
        """The arguments that identify it: namespace, name and kind."""
        return {"namespace": self.namespace, "name": self.name, "kind": self.kind.name}

    @property
    def plan(self) -> JobSpec | None:
        """The plan in its annotations; None if we did not send it."""
        return recorded_plan(annotations_of(self.raw))

    @property
    def path(self) -> str:
        return self.path_of(self.name)

    def path_of(self, name: str) -> str:
        """Return the path of another job of this kind in the namespace; for an empty name, of their list."""
        return self.kind.path(path_part(self.namespace), path_part(name) if name else "")

    @property
    def pod_selector(self) -> str:
        return self.kind.pod_selector(self.raw)


class JobReader:
    """Reads the jobs in one cluster."""

    def __init__(self, api: "Api") -> None:
        self.api = api
        self._kueue: str | None = None
        self._zone_of: dict[str, str] = {}

    def find_job(self, namespace: str, name: str, kind: str | None = None) -> FoundJob:
        """Return the job of this name that Trainyard sent, or the one of `kind`, whoever made it.

        If a RayJob runs on a RayCluster of the same name, it is the RayJob. Raises ConfigError if there is
        none, or if only `kind` can say which is meant; ServiceError if that cannot be known.
        """
        found, refused = list[FoundJob](), None
        for each in [find_kind(kind)] if kind else EVERY_KIND.values():
            try:
                raw = self.api.get(each.path(path_part(namespace), path_part(name)))
            except CredentialsRefusedError:
                raise
            except ServiceError as error:
                refused = error
                continue
            if raw is not None:
                found.append(FoundJob(each, namespace, name, raw))
        ours = [*_without_parts_of_jobs([job for job in found if job.is_ours])]
        if len(ours) == 1 or (kind and found):
            return (ours or found)[0]
        if found:
            kinds = " and ".join(f"a {job.kind.api_kind}" for job in ours or found)
            maker = "that Trainyard sent" if ours else "that Trainyard did not send"
            options = " or ".join(f"--kind {job.kind.name}" for job in ours or found)
            raise ConfigError(f"{name} in {namespace} is {kinds} {maker}. Add what is meant: {options}")
        if refused is not None:
            raise refused
        raise ConfigError(f"There is no job {name} in {namespace}; {self._names_instead(namespace, name)}")

    def _names_instead(self, namespace: str, name: str) -> str:
        """Return what to do where there is no job `name`: the nearest of the names, or how to list them."""
        try:
            names = sorted(job.name for job in self.jobs(namespace))
        except ServiceError:
            names = []
        near = get_close_matches(name, names, n=1)
        if near and near[0] != name:  # else there is one of another kind
            return f"did you mean {near[0]}?"
        return f"{trainyard_command('job ls')} lists all; --kind and --namespace select others"

    def jobs(self, namespace: str) -> list[FoundJob]:
        """Return the jobs that we submitted to a namespace; an empty name means all. Raises ServiceError."""
        space, found = path_part(namespace) if namespace else "", list[FoundJob]()
        for kind in filter(self._serves, EVERY_KIND.values()):
            with _skip_invisible(f"{kind.api_kind}s are not listed", logging.WARNING):
                raws = self.api.list_all(kind.path(space), dict, labelSelector=JOB_LABEL)
                found += [
                    FoundJob(kind, str(raw["metadata"]["namespace"]), name_of(raw), raw) for raw in raws
                ]
        return list(_without_parts_of_jobs(found))

    def observe(self, job: FoundJob) -> Observed:
        """Read the job again, with everything about it. Raises ServiceError if the job cannot be seen."""
        raw = self.api.get(job.path)
        if raw is None:
            return Observed(job.kind, job.namespace, job.name, None, now=self.api.cluster_time())
        return self.observe_found(replace(job, raw=raw))

    def state(self, namespace: str, name: str, kind: str) -> JobState:
        """Return the present state of a job. Raises ConfigError if it does not exist."""
        return judge_job(self.observe(self.find_job(namespace, name, kind)))

    def observe_found(self, job: FoundJob) -> Observed:
        """Read everything about a job whose object was just read."""
        return self.observe_around(Observed(job.kind, job.namespace, job.name, job.raw, self.pods(job)))

    def observe_around(self, observed: Observed) -> Observed:
        """Return the observation with the objects between job and pods, the events, and the time added."""
        owned = tuple(self._owned(observed)) if observed.job is not None else ()
        events, zones = tuple(self._events(observed, owned)), self._zones(observed.pods)
        return replace(observed, owned=owned, events=events, zones=zones, now=self.api.cluster_time())

    def pods(self, job: FoundJob) -> tuple[PodFacts, ...]:
        path = f"/api/v1/namespaces/{path_part(job.namespace)}/pods"
        return tuple(self._list(path, partial(pod_facts, kind=job.kind), labelSelector=job.pod_selector))

    def raw_pods(self, job: FoundJob) -> tuple[Json, ...]:
        """Return the pods as the API returns them. Raises ServiceError."""
        path = f"/api/v1/namespaces/{path_part(job.namespace)}/pods"
        return self.api.list_all(path, dict, labelSelector=job.pod_selector)

    def all_events(self, observed: Observed) -> list[Json]:
        """Every event about the job, its pods of all times, and the objects it owns. Raises ServiceError."""
        path = f"/api/v1/namespaces/{path_part(observed.namespace)}/events"
        names = {observed.name, *(pod.name for pod in observed.pods), *map(name_of, observed.owned)}

        def about(raw: dict[str, Any]) -> dict[str, Any] | None:
            involved = str((raw.get("involvedObject") or {}).get("name") or "")
            is_named = involved in names or involved.startswith(f"{observed.name}-")
            is_ours = is_named and not _is_about_another_job(raw, observed, observed.owned)
            return raw if is_ours else None

        return list(self.api.list_all(path, about))

    def _owned(self, observed: Observed) -> Iterator[Json]:
        space = f"namespaces/{path_part(observed.namespace)}"
        uids = [uid_of(observed.job or {})]
        for objects in observed.kind.owned:
            for raw in self._owned_as(objects, space, observed.job or {}):
                uids += [uid_of(raw)] if objects.in_queue else []
                yield {**raw, "kind": objects.api_kind}
        for uid in uids:
            for raw in self._workloads(space, uid):
                yield {**raw, "kind": "Workload"}

    def _owned_as(self, objects: OwnedObjects, space: str, job: Json) -> Iterator[Json]:
        path = f"{objects.root}/{space}/{objects.resource}"
        if objects.selector_in is not None:
            yield from self._list(path, dict, labelSelector=objects.selector_in(job))
        elif objects.name_in is not None and (name := objects.name_in(job)):
            with _skip_invisible(f"{path}/{name} is not seen"):
                found = self.api.get(f"{path}/{path_part(name)}")
                yield from () if found is None else (found,)

    def _workloads(self, space: str, uid: str) -> list[Json]:
        query = urlencode({"labelSelector": f"kueue.x-k8s.io/job-uid={uid}"})
        with _skip_invisible("Workloads are not seen"):
            for root in _KUEUE if self._kueue is None else filter(None, (self._kueue,)):
                if (answer := self.api.get(f"{root}/{space}/workloads?{query}")) is not None:
                    self._kueue = root
                    return list(answer.get("items") or ())
            self._kueue = ""
        return []

    def _events(self, observed: Observed, owned: Collection[Json]) -> Iterator[Json]:
        path = f"/api/v1/namespaces/{path_part(observed.namespace)}/events"
        names = dict.fromkeys((observed.name, *(name_of(raw) for raw in owned)))
        for name in names:
            found = self._list(path, dict, fieldSelector=f"involvedObject.name={name}")
            yield from (raw for raw in found if not _is_about_another_job(raw, observed, owned))
        troubled = [p for p in observed.pods if p.phase in ("Pending", "Failed") and p.uid]
        for pod in troubled[:_MOST_PODS_ASKED]:  # by name: also of the pods that it replaces
            yield from self._list(path, dict, fieldSelector=f"involvedObject.name={pod.name}")

    def _zones(self, pods: Iterable[PodFacts]) -> dict[str, str]:
        """Return the zones of the nodes whose pods EFA joins; nothing if nodes may not be read."""
        names = {pod.node for pod in pods if pod.efa and pod.live and pod.node}
        if len(names) > 1 and not names <= self._zone_of.keys():
            with _skip_invisible("the zones of the nodes are not seen"):
                nodes = read_nodes(self.api, names)
                self._zone_of |= {
                    name: node.labels.get(ZONE, "") if node else "" for name, node in nodes.items()
                }
        return {name: self._zone_of.get(name, "") for name in names}

    def _list(self, path: str, reduce: Any, **query: str) -> Iterator[Any]:
        with _skip_invisible(f"{path} is not seen"):
            yield from self.api.list_all(path, reduce, **query)

    def _serves(self, kind: JobKind) -> bool:
        answer = self.api.get(f"/apis/{kind.api.group_version}") or {}
        return any(r.get("name") == kind.api.resource for r in answer.get("resources") or ())


def _is_about_another_job(event: Json, observed: Observed, owned: Iterable[Json]) -> bool:
    """Return whether an event is about another job of this name: an earlier one, or one of another kind."""
    about, uids = event.get("involvedObject") or {}, {uid_of(raw) for raw in (observed.job or {}, *owned)}
    is_of_a_job = about.get("kind") in {kind.api_kind for kind in EVERY_KIND.values()}
    return is_of_a_job and observed.job is not None and about.get("uid", "") not in {"", *uids}


@contextmanager
def _skip_invisible(message: str, level: int = logging.DEBUG) -> Iterator[None]:
    """Log a refused read and continue, unless our credentials were refused."""
    try:
        yield
    except CredentialsRefusedError:
        raise
    except ServiceError as error:
        _logger.log(level, "%s: %s", message, error)


def _without_parts_of_jobs(found: list[FoundJob]) -> Iterator[FoundJob]:
    """Leave out the RayClusters on which our RayJobs run, and the Jobs that operators make of our jobs."""
    jobs = {(job.kind.name, read_labels(job.raw).get(JOB_LABEL)) for job in found}
    for job in found:
        owners = job.raw["metadata"].get("ownerReferences") or ()
        is_of_operator = job.kind.name not in KINDS and any(owner.get("controller") for owner in owners)
        if not is_of_operator and (job.kind.submitted_as, read_labels(job.raw).get(JOB_LABEL)) not in jobs:
            yield job


def read_nodes(api: "Api", names: Collection[str]) -> dict[str, Node | None]:
    """Return these nodes, None for those that are gone. Raises ServiceError."""
    if len(names) > _MOST_SINGLE_NODES:
        found = {node.name: node for node in api.list_all("/api/v1/nodes", node_of)}
        return {name: found.get(name) for name in names}
    raws = {name: api.get(f"/api/v1/nodes/{path_part(name)}") for name in names}
    return {name: None if raw is None else node_of(raw) for name, raw in raws.items()}


def list_entry(state: JobState, observed: Observed) -> dict[str, Any]:
    """Return the record of a job in a list: its state and its age."""
    created = time_of(((observed.job or {}).get("metadata") or {}).get("creationTimestamp"))
    age = None if created is None else max(0.0, observed.now - created)
    return {**state.record(), "age_seconds": age}


def event_records(events: Iterable[Json], *, now: float) -> list[dict[str, Any]]:
    """Return events as plain data, the newest last."""
    records = [_event_record(event, now) for event in events]
    return sorted(records, key=lambda record: -(record["age_seconds"] or 0.0))


def _event_record(event: Json, now: float) -> dict[str, Any]:
    involved = event.get("involvedObject") or {}
    series = event.get("series") or {}
    moment = event_time(event)
    return {
        "age_seconds": None if moment is None else max(0.0, now - moment),
        "type": str(event.get("type") or ""),
        "reason": str(event.get("reason") or ""),
        "object": f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}",
        "message": one_line(event.get("message")),
        "count": count(series.get("count"), count(event.get("count"), 1)),
    }
