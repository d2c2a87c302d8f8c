"""Each reason for which pods are missing or do not run: a job each, with a real API server and kubelets.

All reasons are in tests/unit/jobs/state/test_pod_troubles.py; this shows that a cluster says them so.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.integration.job_world import labels_of
from tests.integration.nodes.conftest import IMAGE, Nodes
from tests.integration.nodes.webhook import admission_webhook
from tests.waiting import wait_for

from trainyard.gateways.kubernetes.api import Api
from trainyard.jobs.follow.job_view import follow_job
from trainyard.jobs.job_reader import JobReader
from trainyard.jobs.state.job_state import JobState, State

pytestmark = pytest.mark.slow
Json = dict[str, Any]
SLEEPS, FAILS = ["sh", "-c", "sleep 1000"], ["sh", "-c", "echo ValueError: no; sleep 2; exit 3"]
QUIET = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What the level `restricted` wants of a pod; the container's part is in `container`."""


def container(name: str = "pytorch", command: list[str] = SLEEPS, **more: Any) -> Json:
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {"name": name, "image": IMAGE, "command": command, "securityContext": security, **more}


def worker(**spec: Any) -> Json:
    return {"containers": [container()], "securityContext": QUIET, **spec}


@dataclass(frozen=True)
class Case:
    """A job of a master that runs and a worker with this trouble, in a namespace of its own."""

    klass: str
    words: str
    worker: Json = field(default_factory=worker)
    state: State = State.FAILED
    fix: str = ""
    labels: Json = field(default_factory=dict)


CASES = {
    "quota": Case("quota", "exceeded quota", fix="request fewer"),
    "policy": Case(
        "configuration",
        "violates PodSecurity",
        fix="--kind trainjob",
        labels={"pod-security.kubernetes.io/enforce": "restricted"},
    ),
    "admission": Case("configuration", 'admission webhook "no.example.com" denied the request'),
    "image": Case(
        "image-pull",
        "ErrImageNeverPull",
        worker(containers=[container(image="example.com/nothing:1", imagePullPolicy="Never")]),
    ),
    "mount": Case(
        "configuration",
        'secret "absent" not found',
        worker(
            containers=[container(volumeMounts=[{"name": "v", "mountPath": "/v"}])],
            volumes=[{"name": "v", "secret": {"secretName": "absent"}}],
        ),
    ),
    "schedule": Case("unschedulable", "didn't match", worker(nodeSelector={"no": "where"}), State.PENDING),
    "main": Case(
        "unknown", "exit code 3", worker(containers=[container("a-proxy"), container(command=FAILS)])
    ),
    "sidecar": Case(
        "",
        "a-proxy ended with exit code 3",
        worker(containers=[container("a-proxy", FAILS), container()]),
        State.RUNNING,
    ),
}


def create(nodes: Nodes, name: str, case: Case) -> None:
    """Create the namespace of a case, what refuses its pods, and its job."""
    nodes.request(
        "POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": {"case": name, **case.labels}}}
    )
    if name == "quota":
        body = {"metadata": {"name": "one"}, "spec": {"hard": {"pods": "1"}}}
        quota = nodes.request("POST", f"/api/v1/namespaces/{name}/resourcequotas", body)["metadata"]["name"]
        path = f"/api/v1/namespaces/{name}/resourcequotas/{quota}"
        wait_for(lambda: nodes.request("GET", path).get("status", {}).get("hard"), "the quota to count")

    def replica(spec: Json) -> Json:
        template = {"metadata": {"labels": labels_of("job", "pytorchjob")}, "spec": spec}
        return {"replicas": 1, "restartPolicy": "Never", "template": template}

    def account() -> Any:
        return nodes.request("GET", f"/api/v1/namespaces/{name}/serviceaccounts")["items"]

    wait_for(account, "the service account")
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "job", "labels": labels_of("job", "pytorchjob")},
        "spec": {"pytorchReplicaSpecs": {"Master": replica(worker()), "Worker": replica(case.worker)}},
    }
    nodes.request("POST", f"/apis/kubeflow.org/v1/namespaces/{name}/pytorchjobs", body)


def refuse_workers(asked: Json) -> Json:
    allowed = "worker" not in asked["object"]["metadata"]["name"]
    return {"allowed": allowed, "status": {"message": "no workers here"}}


@pytest.fixture
def webhook(nodes: Nodes, tmp_path: Path) -> Iterator[None]:
    """A webhook that denies the workers of one namespace."""
    chosen = {"matchLabels": {"case": "admission"}}
    with admission_webhook(nodes, tmp_path, "validating", "no", refuse_workers, namespaceSelector=chosen):
        yield


def found(nodes: Nodes, name: str, case: Case) -> JobState:
    """The state of a job once it has the reason; after the end of the wait, if there is one."""
    reader = JobReader(Api(nodes.access))

    def named() -> JobState | None:
        state = reader.state(name, "job", "pytorchjob")
        said = (state.reason, *(state.failure.evidence if state.failure else ()))
        return state if case.words in " ".join(said) else None

    state: JobState = wait_for(named, f"the reason of {name}", within=240)
    if case.state is State.FAILED:
        return follow_job(
            Api(nodes.access),
            namespace=name,
            name="job",
            kind="pytorchjob",
            seconds=400,
            on_state=lambda _: None,
        )
    return state


def test_each_reason_is_named_and_what_cannot_recover_ends_the_wait(nodes: Nodes, webhook: None) -> None:
    nodes.work("pytorchjob")
    for name, case in CASES.items():
        create(nodes, name, case)
    with ThreadPoolExecutor(len(CASES)) as pool:
        states = dict(zip(CASES, pool.map(lambda n: found(nodes, n, CASES[n]), CASES), strict=True))
    wrong = []
    for name, case in CASES.items():
        state = states[name]
        trouble = state.failure or state.waiting
        klass = trouble.failure_class if trouble else ""
        fix = (trouble.fix if trouble else "") or ""
        if (state.state, klass, case.fix in fix, state.pods.wanted) != (case.state, case.klass, True, 2):
            wrong.append(f"{name}: {state}")
    assert not wrong, "\n".join(wrong)
