"""The cluster fails while jobs are followed: API server, operators, connections; Kueue holds jobs back."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.integration.control_plane import operator
from tests.integration.job_world import (
    NAMESPACE,
    World,
    pytorchjob,
    rayjob,
    training_runtime,
    trainjob,
    world,
)
from tests.integration.test_job_scenarios import set_ray
from tests.waiting import wait_for

from trainyard.jobs.state.job_state import JobState, State
from trainyard.watch.failure_classes import FailureClass

pytestmark = pytest.mark.slow
Json = dict[str, Any]
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "manage_training_job.py"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(
        tmp_path_factory.mktemp("outages"), "training-operator", "jobset", "trainer", "kuberay"
    ) as found:
        yield found


def test_an_api_server_that_restarts_is_waited_out(here: World) -> None:
    here.create("pytorchjob", pytorchjob("restart-pt"))
    here.create("trainjob", trainjob("restart-tj"), training_runtime("restart-tj"))
    here.create("rayjob", rayjob("restart-ray"))
    with ThreadPoolExecutor(3) as pool:
        kinds = {"restart-pt": "pytorchjob", "restart-tj": "trainjob", "restart-ray": "rayjob"}
        told = {name: pool.submit(here.follow, kind, name, 240.0) for name, kind in kinds.items()}
        set_ray("RUNNING", "", here, "restart-ray")
        for name in kinds:
            here.running(name)
        here.plane.restart("kube-apiserver")
        time.sleep(2.0)
        here.end(here.pod("restart-tj", 1), 137, reason="OOMKilled")
        here.end_all("restart-pt")
        command = here.job("rayjob", "restart-ray")["status"]["jobId"]
        here.ray.set_job(command, "SUCCEEDED")
        states = {name: future.result() for name, future in told.items()}
    assert states["restart-pt"].state is State.SUCCEEDED
    assert states["restart-ray"].state is State.SUCCEEDED
    failure = states["restart-tj"].failure
    assert failure is not None
    assert (failure.failure_class, failure.rank) == (FailureClass.HOST_MEMORY, 1)


def test_an_operator_that_is_away_delays_the_end_and_does_not_change_it(here: World) -> None:
    here.create("pytorchjob", pytorchjob("away"))
    seen: list[JobState] = []
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(here.follow, "pytorchjob", "away", 180.0, seen)
        here.running("away")
        here.operators["training-operator"].stop()
        here.end_all("away")
        time.sleep(4.0)
        assert not told.done()
        here.operators["training-operator"].start()
        assert told.result().state is State.SUCCEEDED
    assert {state.state for state in seen} <= {
        State.PENDING,
        State.STARTING,
        State.RUNNING,
        State.RESTARTING,
        State.SUCCEEDED,
    }


def test_a_job_that_kueue_holds_waits_runs_and_is_cancelled_for_good(here: World, tmp_path: Path) -> None:
    with operator("kueue", here.plane, tmp_path / "kueue"):
        make_queue(here, gpus=12)
        for name in ("first", "second"):
            here.create("pytorchjob", queued(name))
        here.running("first")
        seen: list[JobState] = []
        with ThreadPoolExecutor(1) as pool:
            told = pool.submit(here.follow, "pytorchjob", "second", 180.0, seen)
            wait_for(
                lambda: any(s.state is State.QUEUED and s.waiting for s in seen), "the second to be queued"
            )
            here.end_all("first")
            here.end_all("second")
            assert told.result().state is State.SUCCEEDED
        held = [state.waiting for state in seen if state.state is State.QUEUED and state.waiting]
        assert any(w.failure_class is FailureClass.QUOTA and "insufficient" in w.evidence for w in held), held
        here.create("pytorchjob", queued("third"))
        here.running("third")
        line = [
            sys.executable,
            str(SCRIPT),
            "cancel",
            "third",
            "--json",
            "--kubeconfig",
            str(here.plane.kubeconfig),
        ]
        done = subprocess.run(line, capture_output=True, text=True, timeout=120)
        assert json.loads(done.stdout)["changes"][0].startswith("deactivate workloads/"), done.stderr
        state = here.follow("pytorchjob", "third", 60.0)
        assert state.failure is not None
        assert state.failure.failure_class is FailureClass.CANCELLED
        wait_for(lambda: not here.pods("third"), "the pods to go")


def make_queue(here: World, *, gpus: int) -> None:
    def create(path: str, kind: str, name: str, spec: Json) -> None:
        body = {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        here.request("POST", f"{KUEUE}/{path}", body)

    quota = {"name": "p5", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": gpus}]}
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": [quota]}]
    create("resourceflavors", "ResourceFlavor", "p5", {})
    create("clusterqueues", "ClusterQueue", "gpus", {"namespaceSelector": {}, "resourceGroups": groups})
    create(f"namespaces/{NAMESPACE}/localqueues", "LocalQueue", "team", {"clusterQueue": "gpus"})

    def active() -> bool:
        found = here.request("GET", f"{KUEUE}/clusterqueues/gpus").get("status", {}).get("conditions", [])
        return any(c["type"] == "Active" and c["status"] == "True" for c in found)

    wait_for(active, "the queue to be active")


def queued(name: str) -> Json:
    body = pytorchjob(name)
    body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team"
    for replica in body["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 4}}
    return body
