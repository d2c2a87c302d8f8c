"""A real Kubernetes control plane for a session of tests, and generated clusters shown in it.

It is the kit in the folder $TRAINYARD_CONTROL_PLANE: API server, controllers, scheduler, simulated nodes, and
the released operators. Without it the tests that need it are skipped.
"""

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cluster.generated import (
    CLAIMS,
    CLASSES,
    DAEMONS,
    DEPLOYMENTS,
    NAMESPACES,
    NODES,
    VOLUMES,
    State,
)
from tests.waiting import wait_for

from trainyard.cluster.trial_objects import trial_job
from trainyard.jobs.job_kind import JobKind
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.kinds import find_kind

WAIT_SECONDS = 120.0
_KINDS = {"training-operator": "pytorchjob", "trainer": "trainjob", "kuberay": "rayjob"}
_NOT_READY = "node.kubernetes.io/not-ready"
_STORAGE = (CLAIMS, VOLUMES, CLASSES)
_STATUS_IS_OURS = (NODES,)
"""Objects that are created with the given status; others get theirs from controllers."""


def kit() -> Path:
    folder = os.environ.get("TRAINYARD_CONTROL_PLANE")
    if not folder:
        pytest.skip("needs a real control plane: set TRAINYARD_CONTROL_PLANE to the folder of the kit")
    sys.path[:0] = [folder, f"{folder}/operators"]
    return Path(folder)


def started(directory: Path, *crds: str) -> Any:
    """The kit's ControlPlane, for a `with`."""
    folder = kit()
    module = importlib.import_module("control_plane")
    return module.ControlPlane(directory, crds=[folder.parent / "crds" / name for name in crds])


def operator(name: str, plane: Any, directory: Path, **more: Any) -> Any:
    """A released operator that works for the plane, for a `with`."""
    kit()
    running = importlib.import_module("operators").start(name, plane.kubeconfig, directory, **more)
    wait_for_operator(name, plane)
    return running


def wait_for_operator(name: str, plane: Any) -> None:
    """Wait until jobs are accepted: it is ready before the API server has the certificate of its webhook."""
    if name in _KINDS:
        wait_for(lambda: _takes(plane, find_kind(_KINDS[name])), f"{name} to take a job")


def _takes(plane: Any, kind: JobKind) -> bool:
    """Whether a job of this kind is accepted as a dry run, webhooks included."""
    body = trial_job(kind, JobSpec(namespace="default"), runtime="torch-distributed")
    try:
        plane.request("POST", f"{kind.path('default')}?dryRun=All", body)
    except RuntimeError:
        return False
    return True


class Shown:
    """A plane that holds one generated cluster after the other: only what differs is changed."""

    def __init__(self, plane: Any) -> None:
        self.plane = plane
        self._shown: State = {}

    def show(self, state: State) -> None:
        """Make the API server hold `state`, and wait until its controllers have caught up."""
        self._forget_storage(state)
        for path in reversed(list(self._shown)):
            for name, body in self._shown[path].items():
                if path != NAMESPACES and state.get(path, {}).get(name) != body:
                    self._remove(path, name)
        for path in sorted(state, key=lambda p: (p != NAMESPACES, p != NODES, p)):
            for name, body in state[path].items():
                if self._shown.get(path, {}).get(name) != body:
                    self._create(path, body)
        self._shown = json.loads(json.dumps(state))
        wait_for(lambda: self._settled(state), "the cluster to settle")

    def _forget_storage(self, state: State) -> None:
        """If storage differs, remove all claims, then all volumes, then all classes."""
        if any(self._shown.get(path) != state.get(path) for path in _STORAGE):
            for path in _STORAGE:
                for name in self._shown.pop(path, {}):
                    self._remove(path, name)

    def _create(self, path: str, body: dict[str, Any]) -> None:
        given = json.loads(json.dumps(body))
        if path not in _STATUS_IS_OURS:
            given.pop("status", None)
        if path == NAMESPACES and self._get(path, body["metadata"]["name"]) is not None:
            meta = {"labels": {**dict.fromkeys(_LEVELS), **(body["metadata"].get("labels") or {})}}
            self.plane.request("PATCH", f"{path}/{body['metadata']['name']}", {"metadata": meta})
            return

        def create() -> bool:
            try:
                self.plane.request("POST", path, given)
            except RuntimeError as error:
                if "409" in str(error) or "serviceaccount" in str(error):  # still there, or not yet
                    return False
                raise
            return True

        wait_for(create, f"{path} to take {body['metadata']['name']}")

    def _remove(self, path: str, name: str) -> None:
        options = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
        try:
            self.plane.request("DELETE", f"{path}/{name}", options)
        except RuntimeError as error:
            if "404" not in str(error):
                raise
        wait_for(lambda: self._get(path, name) is None, f"{name} to go")

    def _get(self, path: str, name: str) -> Any:
        try:
            return self.plane.request("GET", f"{path}/{name}")
        except RuntimeError as error:
            if "404" in str(error):
                return None
            raise

    def _settled(self, state: State) -> bool:
        nodes = [self._get(NODES, name) for name in state[NODES]]
        ready = all(
            any(c["type"] == "Ready" and c["status"] == "True" for c in n["status"].get("conditions") or ())
            and not any(t["key"] == _NOT_READY for t in n["spec"].get("taints") or ())
            for n in nodes
        )
        return ready and self._workloads_settled(state) and self._storage_settled(state)

    def _workloads_settled(self, state: State) -> bool:
        for path, want, have in (
            (DAEMONS, "desiredNumberScheduled", "numberAvailable"),
            (DEPLOYMENTS, "replicas", "availableReplicas"),
        ):
            for name, body in state.get(path, {}).items():
                status = (self._get(path, name) or {}).get("status") or {}
                stalled = "resources" in body["spec"]["template"]["spec"]["containers"][0]
                if not status.get(want) or (not stalled and status.get(want) != status.get(have)):
                    return False
                if path == DAEMONS and status[want] < len(state[NODES]):
                    return False
        return True

    def _storage_settled(self, state: State) -> bool:
        for path, objects in state.items():
            for name, body in objects.items():
                found = self._get(path, name) if path.endswith(("claims", "quotas")) else None
                if path.endswith("persistentvolumeclaims") and (found or {}).get("status", {}).get(
                    "phase"
                ) != (body.get("status") or {}).get("phase"):
                    return False
                if path.endswith("resourcequotas") and not (found or {}).get("status", {}).get("hard"):
                    return False
        return True


_LEVELS = ("pod-security.kubernetes.io/enforce",)


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    with started(tmp_path_factory.mktemp("plane"), "pytorchjobs.kubeflow.org-v1.9.4.yaml") as plane:
        yield Shown(plane)
