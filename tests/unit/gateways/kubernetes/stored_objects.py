"""An API server that keeps objects: versions that count up, conflicts, patches, lists by label. No watches.

It does what the tests of changes need; `tests/integration/test_job_retries.py` uses a real server.
"""

import copy
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.answering import answering

from trainyard.gateways.kubernetes.cluster_access import Access, Credentials

Json = dict[str, Any]
RESOURCES = {
    "/api/v1": [("pods", "Pod"), ("configmaps", "ConfigMap"), ("nodes", "Node")],
    "/apis/kubeflow.org/v1": [("pytorchjobs", "PyTorchJob")],
}


class StoredObjects:
    """The objects by their paths."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.before: Callable[[str, str], None] = lambda _method, _path: None
        """Called before each change, with method and path: another client may act there."""
        self.changes: list[tuple[str, str]] = []
        self.refuses: dict[tuple[str, str], int] = {}
        """(method, path) -> the status of the refusal."""
        self._versions = itertools.count(1)
        self._lock = threading.RLock()
        self.server = ""

    def put(self, path: str, body: Json) -> Json:
        with self._lock:
            stored = copy.deepcopy(body)
            meta = stored.setdefault("metadata", {})
            meta.setdefault("uid", f"uid-{next(self._versions)}")
            meta["resourceVersion"] = str(next(self._versions))
            self.objects[path] = stored
            return stored

    def access(self) -> Access:
        return Access(server=self.server, credentials=Credentials(), context="stored")

    def answer(self, method: str, address: str, body: Any, _headers: Any) -> tuple[int, Any]:
        split = urlsplit(address)
        path, query = unquote(split.path), parse_qs(split.query)
        if (method, path) in self.refuses:
            return self.refuses[method, path], {"message": "refused by the test"}
        if method == "GET":
            return self._read(path, query)
        self.before(method, path)
        with self._lock:
            self.changes.append((method, path))
            return self._changed(method, path, body)

    def _read(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        if path in RESOURCES:
            return 200, {
                "resources": [{"name": n, "kind": k, "namespaced": n != "nodes"} for n, k in RESOURCES[path]]
            }
        with self._lock:
            if path in self.objects:
                return 200, copy.deepcopy(self.objects[path])
            if path.count("/") >= 4 and path.rpartition("/")[2] in (
                "pods",
                "configmaps",
                "pytorchjobs",
                "events",
            ):
                found = [o for p, o in self.objects.items() if p.rpartition("/")[0] == path]
                wanted = [w for w in ",".join(query.get("labelSelector", [])).split(",") if "=" in w]
                kept = [o for o in found if all(_has(o, *w.split("=", 1)) for w in wanted)]
                return 200, {"metadata": {"resourceVersion": "1"}, "items": copy.deepcopy(kept)}
        return 404, {"message": "not found"}

    def _changed(self, method: str, path: str, body: Json) -> tuple[int, Any]:
        if method == "POST":
            place = f"{path}/{body['metadata']['name']}"
            if place in self.objects:
                return 409, {"message": "already exists"}
            return 201, self.put(place, body)
        there = self.objects.get(path)
        if method == "DELETE":
            return (200, self.objects.pop(path)) if there else (404, {})
        if there is None:
            return (201, self.put(path, body)) if "kind" in body else (404, {"message": "not found"})
        version = (body.get("metadata") or {}).get("resourceVersion")
        if version not in (None, there["metadata"]["resourceVersion"]):
            return 409, {"message": "the object has been modified"}
        return 200, self.put(path, _merged(there, body))


def _has(raw: Json, key: str, value: str) -> bool:
    return bool((raw["metadata"].get("labels") or {}).get(key) == value)


def _merged(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict) or not isinstance(old, dict):
        return patch
    merged = {**old, **{key: _merged(old.get(key), value) for key, value in patch.items()}}
    return {key: value for key, value in merged.items() if value is not None}


@contextmanager
def stored_objects() -> Iterator[StoredObjects]:
    """A server on loopback."""
    store = StoredObjects()
    with answering(store.answer) as server:
        store.server = server
        yield store
