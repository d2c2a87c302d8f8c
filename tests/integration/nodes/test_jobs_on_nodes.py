"""Jobs whose pods really run: exit codes, memory limits, images, logs of dead pods, followers."""

import json
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.integration.job_world import labels_of, metadata_of
from tests.integration.nodes.conftest import IMAGE, SPACE, Nodes
from tests.waiting import wait_for

from trainyard.jobs.state.job_state import State

pytestmark = pytest.mark.slow
Json = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def training_operator(nodes: Nodes) -> None:
    nodes.work("pytorchjob")


def job(name: str, command: str, *, workers: int = 0, restart: str = "ExitCode", **container: Any) -> Json:
    """A PyTorchJob that runs a shell command; RANK is the pod's number."""
    body = {
        "name": "pytorch",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", command],
    }
    body |= {"terminationMessagePolicy": "FallbackToLogsOnError", **container}
    spec = {"containers": [body], "terminationGracePeriodSeconds": 5}
    replica = {
        "restartPolicy": restart,
        "template": {"metadata": {"labels": labels_of(name, "pytorchjob")}, "spec": spec},
    }
    replicas = {"Master": {"replicas": 1, **replica}}
    if workers:
        replicas["Worker"] = {"replicas": workers, **replica}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata_of(name, "pytorchjob"),
        "spec": {"runPolicy": {"cleanPodPolicy": "Running"}, "pytorchReplicaSpecs": replicas},
    }


FAILURES: dict[str, tuple[Json, str, int, str]] = {
    "exits": ({"command": "echo step 1; echo no such layer >&2; exit 3"}, "unknown", 3, "no such layer"),
    "stops": ({"command": "echo saved; exit 75"}, "preempted", 75, "saved"),
    "greedy": (
        {
            "command": f"{shlex.quote(sys.executable)} -c 'x = bytearray(400 << 20); print(len(x))'",
            "restart": "Never",
            "resources": {"limits": {"memory": "64Mi"}},
        },
        "oom-host",
        137,
        "",
    ),
    "crashes": (
        {"command": "echo last words; exit 139", "restart": "Never"},
        "unknown",
        139,
        "last words",
    ),
    "no-program": ({"command": "exec /nothing/there"}, "configuration", 127, "not found"),
}


def test_each_end_of_a_real_container_is_told_as_what_it_is(nodes: Nodes) -> None:
    with ThreadPoolExecutor(len(FAILURES)) as pool:
        for name, (given, *_) in FAILURES.items():
            nodes.create("pytorchjob", job(name, **given))
        states = {name: pool.submit(nodes.follow, "pytorchjob", name, 150.0) for name in FAILURES}
        for name, (_, failure_class, code, words) in FAILURES.items():
            state = states[name].result()
            assert (state.state, state.failure is not None) == (State.FAILED, True), state
            assert state.failure is not None
            told = (state.failure.failure_class, state.failure.exit_code, state.failure.rank)
            assert told == (failure_class, code, 0), (name, state)
            assert words in "\n".join(state.failure.lines), (name, state)
    shown = json.loads(nodes.manage("status", "greedy", "--json", code=1))
    assert shown["failure"]["class"] == "oom-host"
    assert nodes.manage("status", "stops", code=75).startswith("stops (pytorchjob) in default: Failed")


def test_the_log_before_a_restart_in_place_is_shown_and_saved(nodes: Nodes, tmp_path: Path) -> None:
    command = (
        "n=$(cat /count/n 2>/dev/null || echo 0); echo $((n+1)) > /count/n; echo run $n; "
        "[ $n = 1 ] && sleep 600; exit 7"
    )
    mounts = [{"name": "count", "mountPath": "/count"}]
    body = job("again", command, restart="OnFailure", volumeMounts=mounts)
    template = body["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    template["spec"]["volumes"] = [{"name": "count", "emptyDir": {}}]
    nodes.create("pytorchjob", body)

    def restarted() -> bool:
        pods = nodes.pods("again").values()
        statuses = [s for pod in pods for s in pod["status"].get("containerStatuses") or ()]
        # Its kubelet may report the new container before the end of the old one.
        return any("running" in s["state"] and "terminated" in s["lastState"] for s in statuses)

    wait_for(restarted, "the container to start again")
    title = "again-master-0/pytorch"
    assert nodes.manage("logs", "again").split("\n")[0] == f"{title}#1  run 1"
    assert nodes.manage("logs", "again", "--previous").split("\n")[:2] == [
        f"{title}  run 0",
        f"{title}#1  run 1",
    ]
    state = json.loads(nodes.manage("status", "again", "--json"))
    assert (state["status"], state["restarts"]) == ("Running", 1)
    nodes.manage("delete", "again", "--save", str(tmp_path / "logs"), "--timeout", "90s")
    contents = {path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert contents == {"run 0\n", "run 1\n"}
    assert nodes.pods("again") == {}


def test_a_claim_alone_is_left_after_a_job_is_deleted(nodes: Nodes) -> None:
    """A claim may have checkpoints, so it must not go by a label."""
    nodes.create("pytorchjob", job("leaves", "sleep 600", workers=1))
    for resource, spec in (
        ("configmaps", {}),
        (
            "persistentvolumeclaims",
            {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        ),
    ):
        body: Json = {"metadata": {"name": "leaves-part", "labels": labels_of("leaves", "pytorchjob")}}
        nodes.request("POST", f"{SPACE}/{resource}", {**body, **({"spec": spec} if spec else {})})
    nodes.running("leaves", 2)
    nodes.manage("delete", "leaves", "--no-logs", "--timeout", "120s")
    for resource in ("pods", "services", "configmaps", "persistentvolumeclaims"):
        names = [item["metadata"]["name"] for item in nodes.request("GET", f"{SPACE}/{resource}")["items"]]
        left = ["leaves-part"] if resource == "persistentvolumeclaims" else []
        assert [name for name in names if name.startswith("leaves")] == left, resource
    nodes.request("DELETE", f"{SPACE}/persistentvolumeclaims/leaves-part")


def test_a_cancelled_job_stops_its_pods_gently_and_can_be_sent_again(nodes: Nodes, tmp_path: Path) -> None:
    nodes.create(
        "pytorchjob", job("gentle", "trap 'echo saving; exit 75' TERM; echo up; while :; do sleep 1; done")
    )
    nodes.running("gentle", 1)
    assert nodes.manage("resubmit", "gentle", code=2) == ""
    assert nodes.manage("cancel", "gentle") == "suspended pytorchjobs/gentle\n"
    wait_for(lambda: not nodes.pods("gentle"), "the pods to go")
    assert nodes.manage("resubmit", "gentle") == "created pytorchjobs/gentle-2\n"
    nodes.running("gentle-2", 1)
    assert set(nodes.pods("gentle-2")) == {"gentle-2-master-0"}
    nodes.manage("delete", "gentle-2", "--no-logs")
