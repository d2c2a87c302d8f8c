"""A small API server in memory: objects with versions and owners, selectors, watches, logs, planted faults.

    client ──HTTP on loopback──> fault? ──no──> objects by path ──> events of the watches, garbage collection

It answers as the real one does: a list is requested by path and selectors, an apply fails where another
manager owns a field, an object's dependents are deleted with it, an object with a finalizer stays until the
finalizer is removed.
"""

import copy
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.answering import answering

from trainyard.gateways.kubernetes.cluster_access import Access, Credentials

Json = dict[str, Any]
CUT_BEFORE, CUT_AFTER = -1, -2
"""Statuses of a fault: the connection is cut before the request has an effect, or after it."""
SERVED: dict[str, list[tuple[str, str]]] = {
    "/api/v1": [
        ("pods", "Pod"),
        ("configmaps", "ConfigMap"),
        ("services", "Service"),
        ("secrets", "Secret"),
        ("persistentvolumeclaims", "PersistentVolumeClaim"),
        ("events", "Event"),
        ("namespaces", "Namespace"),
    ],
    "/apis/batch/v1": [("jobs", "Job")],
    "/apis/kubeflow.org/v1": [("pytorchjobs", "PyTorchJob"), ("pytorchjobs/status", "PyTorchJob")],
    "/apis/trainer.kubeflow.org/v1alpha1": [
        ("trainjobs", "TrainJob"),
        ("trainingruntimes", "TrainingRuntime"),
    ],
    "/apis/ray.io/v1": [("rayjobs", "RayJob"), ("rayclusters", "RayCluster")],
    "/apis/jobset.x-k8s.io/v1alpha2": [("jobsets", "JobSet")],
    "/apis/kueue.x-k8s.io/v1beta1": [("workloads", "Workload")],
}
REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
_METADATA = ("as=PartialObjectMetadata;", "as=PartialObjectMetadataList;")


@dataclass
class Fault:
    """A fault of requests with this method whose path has this ending."""

    method: str
    ending: str
    status: int
    times: int = 1_000_000
    message: str = "planted"


@dataclass
class PodLog:
    """The log of a container."""

    lines: list[str]
    cut: int | None = None
    """A request gets so many lines before its connection is cut at the end of the next one's text."""


@dataclass(frozen=True)
class Request:
    """The request of a client."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    accept: str


class MemoryCluster:
    """The objects by their paths, and the requests."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.served = {root: list(kinds) for root, kinds in SERVED.items()}
        self.logs: dict[tuple[str, str, bool], PodLog] = {}
        """By pod, container, and whether it is the log of the previous container."""
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.before: Callable[[str, str], None] = lambda _method, _path: None
        """Called before each request has an effect, with method and path: another client may act there."""
        self.news = threading.Condition(threading.RLock())
        self.is_closed = False
        self.server = ""
        self._versions = itertools.count(1)
        self._events: list[tuple[int, str, str, Json]] = []
        self._owners: dict[str, dict[str, tuple[Any, str]]] = {}
        """Path -> field -> its value and who set it."""

    def access(self) -> Access:
        return Access(server=self.server, credentials=Credentials(), context="memory")

    def put(self, path: str, body: Json, manager: str = "other") -> Json:
        """Create or replace an object as `manager`."""
        with self.news:
            stored, there = copy.deepcopy(body), self.objects.get(path)
            meta = stored.setdefault("metadata", {})
            meta["uid"] = meta.get("uid") or f"uid-{next(self._versions)}"
            meta["resourceVersion"] = str(next(self._versions))
            self.objects[path] = stored
            fields = self._owners.setdefault(path, {})
            for name, value in _leaves(body):
                if name not in fields or fields[name][0] != value:
                    fields[name] = (value, manager)
            self._tell("MODIFIED" if there else "ADDED", path, stored)
            return copy.deepcopy(stored)

    def remove(self, path: str) -> None:
        """Remove an object, with all that it owns."""
        with self.news:
            gone = self.objects.pop(path, None)
            if gone is None:
                return
            self._owners.pop(path, None)
            gone["metadata"]["resourceVersion"] = str(next(self._versions))
            self._tell("DELETED", path, gone)
            uid = gone["metadata"]["uid"]
            for owned in [p for p, o in self.objects.items() if uid in _owners_of(o)]:
                self._end(owned)

    def names(self, ending: str) -> list[str]:
        """The names of all objects in the lists whose path has this ending."""
        with self.news:
            found = (p.rpartition("/") for p in self.objects)
            return sorted(name for place, _, name in found if place.endswith(f"/{ending}"))

    def changes(self) -> list[tuple[str, str]]:
        """The requests so far, except reads."""
        return [(r.method, r.path) for r in self.requests if r.method != "GET"]

    def fault(self, method: str, ending: str, status: int, **more: Any) -> None:
        self.faults.append(Fault(method, ending, status, **more))

    def fault_of(self, method: str, path: str) -> Fault | None:
        """The fault that meets this request."""
        for fault in self.faults:
            if fault.method == method and path.endswith(fault.ending) and fault.times > 0:
                fault.times -= 1
                return fault
        return None

    def respond(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> tuple[int, Any]:
        """The answer to any request, or what its fault makes of it."""
        address = urlsplit(path)
        query = {key: values[0] for key, values in parse_qs(address.query).items()}
        request = Request(method, unquote(address.path), query, body, headers.get("Accept", ""))
        with self.news:
            self.requests.append(request)
            fault = self.fault_of(request.method, request.path)
        if fault is not None and fault.status == CUT_AFTER:
            self.answer(request)
        if fault is not None:
            return (0, None) if fault.status < 0 else _refused(fault.status, fault.message)
        if "watch" in query:
            return 200, (json.dumps(event).encode() + b"\n" for event in self.events(request))
        return self.log(request) if request.path.endswith("/log") else self.answer(request)

    def log(self, request: Request) -> tuple[int, Any]:
        """The answer to a request for the log of a container."""
        pod = request.path.split("/")[-2]
        log = self.logs.get((pod, request.query["container"], "previous" in request.query))
        return _refused(404, f'pods "{pod}" not found') if log is None else (200, _lines(log, request.query))

    def answer(self, request: Request) -> tuple[int, Json]:
        """The answer to anything but a watch or a log."""
        self.before(request.method, request.path)
        with self.news:
            status, body = getattr(self, f"_{request.method.lower()}")(request)
            if status < 300 and any(name in request.accept for name in _METADATA):
                body = {**body, "items": [{"metadata": o["metadata"]} for o in body.get("items", ())]}
            return status, copy.deepcopy(body)

    def events(self, request: Request) -> Iterator[Json]:
        """The events of a watch, as they come."""
        reached = int(request.query.get("resourceVersion") or 0)
        while not self.is_closed:
            with self.news:
                coming = [e for e in self._events if e[0] > reached and _place(e[2]) == request.path]
                if not coming:
                    self.news.wait(0.05)
                    continue
            for version, kind, _, raw in coming:
                reached = version
                if _is_selected(raw, request.query):
                    yield {"type": kind, "object": raw}

    def _tell(self, kind: str, path: str, raw: Json) -> None:
        self._events.append((int(raw["metadata"]["resourceVersion"]), kind, path, copy.deepcopy(raw)))
        self.news.notify_all()

    def _get(self, request: Request) -> tuple[int, Json]:
        path = request.path
        if path in self.served:
            kinds = [
                {"name": name, "kind": kind, "namespaced": name != "namespaces"}
                for name, kind in self.served[path]
            ]
            return 200, {"kind": "APIResourceList", "resources": kinds}
        if path in self.objects:
            return 200, self.objects[path]
        if not self._is_list(path):
            return _refused(404, f"{path} not found")
        inside = [o for p, o in self.objects.items() if _is_in(path, p) and _is_selected(o, request.query)]
        first, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", 10**6))
        more = {"continue": str(first + limit)} if first + limit < len(inside) else {}
        version = max((e[0] for e in self._events), default=0)
        page = inside[first : first + limit]
        return 200, {"metadata": {**more, "resourceVersion": str(version)}, "kind": "List", "items": page}

    def _post(self, request: Request) -> tuple[int, Json]:
        if not self._is_list(request.path):
            return _refused(404, "the server could not find the requested resource")
        path = f"{request.path}/{request.body['metadata']['name']}"
        if path in self.objects:
            return _refused(409, f'"{path.rpartition("/")[2]}" already exists', "AlreadyExists")
        return 201, self.put(path, request.body, request.query["fieldManager"])

    def _patch(self, request: Request) -> tuple[int, Json]:
        path, body, manager = request.path, request.body, request.query["fieldManager"]
        there = self.objects.get(path)
        is_apply = "kind" in body
        if there is None and not is_apply:
            return _refused(404, f"{path} not found")
        version = (body.get("metadata") or {}).get("resourceVersion")
        if there is not None and version not in (None, there["metadata"]["resourceVersion"]):
            return _refused(
                409, "the object has been modified; please apply your changes to the latest version"
            )
        foreign = self._foreign(path, body, manager) if is_apply else []
        if foreign:
            return _refused(409, f'Apply failed with 1 conflict: conflict with "other": {foreign[0]}')
        merged = body if there is None else _merged(there, body)
        if "dryRun" in request.query:
            return (201 if there is None else 200), merged
        return (201 if there is None else 200), self.put(path, merged, manager)

    def _foreign(self, path: str, body: Json, manager: str) -> list[str]:
        """The fields that another manager has set to other values."""
        fields = self._owners.get(path, {})
        return [
            name
            for name, value in _leaves(body)
            if name in fields and fields[name][1] != manager and fields[name][0] != value
        ]

    def _delete(self, request: Request) -> tuple[int, Json]:
        there = self.objects.get(request.path)
        if there is None:
            return _refused(404, f"{request.path} not found")
        wanted = ((request.body or {}).get("preconditions") or {}).get("uid")
        uid = there["metadata"]["uid"]
        if wanted not in (None, uid):
            said = f"the UID in the precondition ({wanted}) does not match the UID in record ({uid})"
            return _refused(409, said)
        self._end(request.path)
        return 200, {"kind": "Status", "status": "Success"}

    def _end(self, path: str) -> None:
        raw = self.objects[path]
        if raw["metadata"].get("finalizers"):
            meta = {**raw["metadata"], "deletionTimestamp": "2026-11-20T00:00:00Z"}
            self.put(path, {**raw, "metadata": meta})
        else:
            self.remove(path)

    def _is_list(self, path: str) -> bool:
        root, resource = re.sub(r"/namespaces/[^/]+(?=/)", "", path).rsplit("/", 1)
        return resource in [name for name, _ in self.served.get(root, ())]


def _refused(status: int, message: str, reason: str = "") -> tuple[int, Json]:
    return status, {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason or REASONS[status],
        "code": status,
    }


def _lines(log: PodLog, query: Mapping[str, str]) -> Iterator[bytes]:
    lines = log.lines[-int(query.get("tailLines", 10**6)) :]
    for line in lines[: log.cut]:
        yield f"{line}\n".encode()
    if log.cut is not None:
        yield lines[log.cut].encode()
        raise ConnectionAbortedError


def _place(path: str) -> str:
    return path.rpartition("/")[0]


def _is_in(listed: str, path: str) -> bool:
    """Return whether an object is in this list, which is of one namespace or of all."""
    return _place(path) == listed or re.sub(r"/namespaces/[^/]+(?=/)", "", _place(path)) == listed


def _owners_of(raw: Json) -> list[str]:
    return [owner["uid"] for owner in raw["metadata"].get("ownerReferences") or ()]


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The fields that a manager can own."""
    for key, inner in value.items():
        here = f"{name}.{key}"
        if isinstance(inner, dict):
            yield from _leaves(inner, here)
        elif here not in (".metadata.resourceVersion", ".metadata.uid", ".kind", ".apiVersion"):
            yield here, inner


def _is_selected(raw: Json, query: Mapping[str, str]) -> bool:
    labels = raw["metadata"].get("labels") or {}
    wanted = re.split(r",(?![^(]*\))", query.get("labelSelector", ""))
    fields = [entry for entry in query.get("fieldSelector", "").split(",") if entry]
    return all(_has(labels, entry) for entry in wanted if entry) and all(_is_at(raw, e) for e in fields)


def _has(labels: Json, wanted: str) -> bool:
    if among := re.fullmatch(r"(\S+) in \((.*)\)", wanted):
        return labels.get(among[1]) in among[2].split(",")
    key, is_equal, value = wanted.partition("=")
    return bool(labels.get(key) == value) if is_equal else key in labels


def _is_at(raw: Json, wanted: str) -> bool:
    path, _, value = wanted.partition("=")
    found: Any = raw
    for part in path.split("."):
        found = (found or {}).get(part)
    return bool(found == value)


def _merged(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    base = old if isinstance(old, dict) else {}
    merged = {**base, **{key: _merged(base.get(key), value) for key, value in patch.items()}}
    return {key: value for key, value in merged.items() if value is not None}


@contextmanager
def memory_cluster() -> Iterator[MemoryCluster]:
    """A cluster on loopback."""
    cluster = MemoryCluster()
    with answering(cluster.respond, version="HTTP/1.1") as cluster.server:
        try:
            yield cluster
        finally:
            cluster.is_closed = True


def write_kubeconfig(path: Path, server: str, namespace: str = "team") -> None:
    """Write a kubeconfig whose only context names the server and the namespace."""
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": namespace}}],
        "clusters": [{"name": "here", "cluster": {"server": server}}],
        "users": [{"name": "me", "user": {"token": "good"}}],
    }
    path.write_text(json.dumps(document))
