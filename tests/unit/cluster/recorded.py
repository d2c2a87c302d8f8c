"""A small API server on loopback: answers from recorded objects, and misbehaves where a test plants it."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.answering import answering
from tests.unit.cluster.generated import State
from tests.unit.gateways.kubernetes.memory_cluster import write_kubeconfig

Json = dict[str, Any]
GROUPS = {"apps": ("v1",), "storage.k8s.io": ("v1",), "scheduling.k8s.io": ("v1",), "kubeflow.org": ("v1",)}
RESOURCES = {"kubeflow.org/v1": ("pytorchjobs", "pytorchjobs/status")}


@dataclass
class Misbehaviour:
    """A different answer to requests whose path starts with `prefix`."""

    prefix: str
    status: int = 0
    """0 hangs up without an answer."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Json = field(default_factory=dict)
    times: int = 10**9
    delay: float = 0.0
    method: str = ""
    whole: bool = False
    """Only to the path `prefix` itself."""
    text: str = ""
    """The answer as it is sent, instead of `body`."""

    def meets(self, method: str, path: str) -> bool:
        right = path == self.prefix if self.whole else path.startswith(self.prefix)
        return right and self.times > 0 and self.method in ("", method)


@dataclass
class Recorded:
    """The server's state, which tests change as they like."""

    state: State
    folder: Path
    """Of the kubeconfig."""
    groups: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict(GROUPS))
    resources: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict(RESOURCES))
    misbehaviours: list[Misbehaviour] = field(default_factory=list)
    tokens: set[str] = field(default_factory=lambda: {"good"})
    refused: set[tuple[str, str]] = field(default_factory=set)
    """Verb and resource that access reviews deny."""
    requests: list[str] = field(default_factory=list)
    created: list[Json] = field(default_factory=list)
    url: str = ""

    def kubeconfig(self) -> Path:
        write_kubeconfig(self.folder / "kubeconfig.json", self.url)
        return self.folder / "kubeconfig.json"

    def answer(
        self, method: str, path: str, body: Json | None, headers: Mapping[str, str]
    ) -> tuple[Any, ...]:
        self.requests.append(f"{method} {path}")
        address = urlsplit(path)
        bad = next((bad for bad in self.misbehaviours if bad.meets(method, address.path)), None)
        if bad is not None:
            bad.times -= 1
            time.sleep(bad.delay)
            return bad.status, bad.text.encode() or bad.body or _status(bad.status, "told so"), bad.headers
        if headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            return 401, _status(401, "Unauthorized")
        query = {key: values[0] for key, values in parse_qs(address.query).items()}
        return self._read(address.path, query) if body is None else self._write(address.path, query, body)

    def _write(self, path: str, query: Mapping[str, str], body: Json) -> tuple[int, Json]:
        if path.endswith("/selfsubjectreviews"):
            return 404, {}
        if path.endswith("selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            allowed = (asked["verb"], asked["resource"]) not in self.refused
            return 201, {**body, "status": {"allowed": allowed}}
        space, inside, _ = path.partition("/namespaces/")[2].partition("/")
        if inside and space not in self.state.get("/api/v1/namespaces", {}):
            return 404, _status(404, f'namespaces "{space}" not found')
        account = body.get("spec", {}).get("serviceAccountName")
        if account and account not in self.state.get(f"/api/v1/namespaces/{space}/serviceaccounts", {}):
            missing = f'looking up service account {space}/{account}: serviceaccount "{account}" not found'
            return 403, _status(403, f'pods "{body["metadata"]["name"]}" is forbidden: error {missing}')
        if "dryRun" not in query:
            self.created.append(body)
        return 201, {**body, "metadata": {"uid": "u-1", **body.get("metadata", {})}}

    def _read(self, path: str, query: Mapping[str, str]) -> tuple[int, Json]:
        if path == "/version":
            return 200, {"gitVersion": "v1.34.4", "major": "1", "minor": "34"}
        if path == "/apis":
            return 200, {"groups": [_group(name, versions) for name, versions in self.groups.items()]}
        if path.removeprefix("/apis/") in self.resources:
            names = self.resources[path.removeprefix("/apis/")]
            return 200, {"resources": [{"name": name, "kind": name} for name in names]}
        parent, _, name = path.rpartition("/")
        if name in self.state.get(parent, {}):
            return 200, self.state[parent][name]
        items = _objects_at(self.state, path)
        if items is None:
            return 404, _status(404, "the server could not find the requested resource")
        start, limit = int(query.get("continue", 0)), int(query.get("limit", 10**9))
        end = start + limit
        metadata = {"resourceVersion": "7", **({"continue": str(end)} if end < len(items) else {})}
        return 200, {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items[start:end]}


@contextmanager
def serving(state: State, folder: Path) -> Iterator[Recorded]:
    recorded = Recorded(state, folder)
    with answering(recorded.answer) as recorded.url:
        yield recorded


_COLLECTIONS = {
    *("nodes", "pods", "daemonsets", "deployments", "resourcequotas", "csidrivers"),
    *("localqueues", "clusterqueues"),
    *("validatingwebhookconfigurations", "mutatingwebhookconfigurations", "resourceflavors"),
    "clustertrainingruntimes",
}


def _objects_at(state: State, path: str) -> list[Json] | None:
    """The objects of a list: of one namespace, or of all."""
    root, _, plural = path.rpartition("/")
    if plural not in _COLLECTIONS:
        return None
    if "/namespaces/" in path:
        return list(state.get(path, {}).values())
    return [
        body
        for place, objects in state.items()
        if place == path or (place.startswith(f"{root}/namespaces/") and place.endswith(f"/{plural}"))
        for body in objects.values()
    ]


def _group(name: str, versions: tuple[str, ...]) -> Json:
    listed = [{"groupVersion": f"{name}/{v}", "version": v} for v in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _status(code: int, message: str) -> Json:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
