"""Requests of a check meet faults of an API server: no crash, no false green, no false red.

Every request meets every fault that its own check judges. The gateway handles eight faults for all requests
in one place; each request meets two or three of them.

request × fault ──> goes away: as without a fault
                    401: the credentials are refused
                    stays: its check reports that it could not read; an essential one gives `not known`
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests import warm_start
from tests.unit.cluster.generated import NAMESPACE, Json, State, plain_eks, put
from tests.unit.cluster.judging import SCRIPT, look_at, verdict_of
from tests.unit.cluster.recorded import Misbehaviour, Recorded, serving

from trainyard.cluster.verdict import Readiness
from trainyard.errors import CredentialsRefusedError, ServiceError
from trainyard.gateways import bounded_calls
from trainyard.gateways.kubernetes import api_requests as api_module
from trainyard.plan.finding import Finding, Severity

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
PLAN = (
    *("--num-nodes", "4", "--instance-type", "p5.48xlarge", "--volume", "checkpoints", "--secret", "hf"),
    *("--queue", "main", "--priority-class", "gold"),
)
ESSENTIAL = {"/api/v1/nodes": "gpu", "/apis": "job-api", "/apis/kubeflow.org/v1": "job-api"}
"""Requests without which it is not known whether a cluster is ready -> the check that reports it."""
LISTS = {
    "/api/v1/nodes": {"gpu", "node-health"},
    "/api/v1/pods": {"capacity"},
    "/apis/apps/v1/daemonsets": {"device-plugin"},
    "/apis/apps/v1/deployments": {"operator"},
    f"/api/v1/namespaces/{NAMESPACE}/resourcequotas": {"quota"},
    f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/checkpoints": {"storage"},
}
"""Lists -> the checks that report it where they may not be read."""
TRIALS = (f"/api/v1/namespaces/{NAMESPACE}/pods", f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs")
"""Dry runs."""


@dataclass(frozen=True)
class ApiFault:
    name: str
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 10**9
    delay: float = 0.0
    text: str = ""

    @property
    def heals(self) -> bool:
        return self.times < 4


FAULTS = (
    ApiFault("401", 401),
    ApiFault("403", 403),
    ApiFault("429 once", 429, {"Retry-After": "0"}, times=1),
    ApiFault("429", 429, {"Retry-After": "0"}),
    ApiFault("500", 500),
    ApiFault("503 twice", 503, times=2),
    ApiFault("hangs up once", 0, times=1),
    ApiFault("hangs up", 0),
    ApiFault("hangs", 200, delay=0.6),
    ApiFault("a list in place of an object", 200, text="[1, 2]"),
    ApiFault("a page of a proxy", 200, text="<html>sign in</html>"),
    ApiFault(
        "null in every field", 200, text='{"items": null, "groups": null, "status": null, "spec": null}'
    ),
)


def cluster() -> State:
    """A cluster with all that a plan may name."""
    state = plain_eks().state
    put(state, f"/api/v1/namespaces/{NAMESPACE}/secrets", _object_named("hf"))
    active = {"conditions": [{"type": "Active", "status": "True"}]}
    local = _object_named("main") | {"spec": {"clusterQueue": "all"}, "status": active}
    put(state, f"{KUEUE}/namespaces/{NAMESPACE}/localqueues", local)
    amounts = {"cpu": "10k", "memory": "90Ti", "nvidia.com/gpu": "64", "vpc.amazonaws.com/efa": "256"}
    resources = [{"name": name, "nominalQuota": amount} for name, amount in amounts.items()]
    flavors = [{"name": "p5", "resources": resources}]
    queue = _object_named("all") | {"spec": {"resourceGroups": [{"flavors": flavors}]}, "status": active}
    put(state, f"{KUEUE}/clusterqueues", queue)
    return state


def _object_named(name: str) -> Json:
    return {"metadata": {"name": name}}


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    monkeypatch.setattr(bounded_calls, "FIRST_SECONDS", 0.001)
    with serving(cluster(), tmp_path) as served:
        served.groups["kueue.x-k8s.io"] = ("v1beta2",)
        yield served


def test_the_check_of_this_cluster_is_ready(recorded: Recorded) -> None:
    assert judge(recorded) == (Readiness.READY, {})
    assert len(requests_of(recorded)) >= 22


QUICK = ("403", "429", "hangs up")
OF_THE_GATEWAY = ("401", "429 once", "429", "500", "503 twice", "hangs up once", "hangs up", "hangs")
PLANTED = [
    pytest.param(fault, id=fault.name, marks=() if fault.name in QUICK else pytest.mark.slow)
    for fault in FAULTS
]


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLANTED)
def test_every_request_meets_this_fault(fault: ApiFault, recorded: Recorded) -> None:
    judge(recorded)
    wrong = {}
    turn, by = (OF_THE_GATEWAY.index(fault.name) % 3, 3) if fault.name in OF_THE_GATEWAY else (0, 1)
    for method, path in requests_of(recorded)[turn::by]:
        bad = Misbehaviour(path, fault.status, fault.headers, times=fault.times, delay=fault.delay)
        recorded.misbehaviours[:] = [replace(bad, method=method, whole=True, text=fault.text)]
        if problem := dishonest(path, fault, recorded):
            wrong[method, path] = problem
    assert wrong == {}


def requests_of(recorded: Recorded) -> list[tuple[str, str]]:
    """Method and path of every request so far."""
    split = (request.split(" ", 1) for request in recorded.requests)
    return sorted({(method, urlsplit(path).path) for method, path in split})


def dishonest(path: str, fault: ApiFault, recorded: Recorded) -> str:
    """The error in the check's report; empty where the report is honest."""
    try:
        state, said = judge(recorded, seconds=0.3 if fault.delay else 20.0)
    except CredentialsRefusedError as error:
        return "" if fault.status == 401 else str(error)
    except ServiceError as error:
        return "" if path == "/version" and not fault.heals else str(error)
    if fault.status == 401 or (path == "/version" and not fault.heals):
        return "nothing was raised"
    if fault.heals:
        return "" if (state, said) == (Readiness.READY, {}) else f"{state}: {said}"
    return _false_claim(path, fault, state, said)


def _false_claim(path: str, fault: ApiFault, state: Readiness, said: dict[str, list[Finding]]) -> str:
    """The error where something unread is called faulty, or where the cluster is called ready without it."""
    if fault.text.startswith("{"):  # a valid answer, if a strange one: there are no objects
        return ""
    expected = Readiness.UNKNOWN if path in ESSENTIAL else Readiness.READY
    if path in TRIALS and fault.status == 403:  # a valid answer, too: the job is not admitted
        expected = Readiness.NOT_READY
    if state is not expected:
        return f"{state}: {said}"
    refused = LISTS.get(path, set()) if fault.status == 403 else set()
    for check in refused | ({ESSENTIAL[path]} if path in ESSENTIAL else set()):
        told = [each.evidence for each in said.get(check, ()) if each.severity is Severity.SKIPPED]
        if not told or (check in refused and not any("not allowed" in text for text in told)):
            return f"{check} says {told}"
    return ""


def judge(recorded: Recorded, *, seconds: float = 20.0) -> tuple[Readiness, dict[str, list[Finding]]]:
    """The verdict, and each check's findings that did not pass."""
    look = look_at(recorded.kubeconfig(), *PLAN, call_seconds=seconds)
    verdict = look.judge(lambda **_: None)
    said: dict[str, list[Finding]] = {}
    for finding in verdict.findings:
        if finding.severity is not Severity.PASSED and finding.subject != "image":
            said.setdefault(finding.subject, []).append(finding)
    return verdict.state, said


# Single faults, with what is said about them.

FEWER = ("--num-nodes", "4", "--instance-type", "p5.48xlarge", "--volume", "checkpoints")


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    monkeypatch.setattr(bounded_calls, "FIRST_SECONDS", 0.01)
    with serving(plain_eks().state, tmp_path) as served:
        yield served


def outcomes_of(plain: Recorded, *options: str) -> tuple[Readiness, dict[str, list[Any]]]:
    verdict = verdict_of(plain.kubeconfig(), *FEWER, *options)
    found: dict[str, list[Any]] = {}
    for finding in verdict.findings:
        found.setdefault(finding.subject, []).append(finding)
    return verdict.state, found


def test_retry_after_is_obeyed(plain: Recorded) -> None:
    plain.misbehaviours.append(Misbehaviour("/api/v1/nodes", 429, {"Retry-After": "1"}, times=1))
    started = time.monotonic()
    assert outcomes_of(plain)[0] is Readiness.READY
    assert time.monotonic() - started >= 1.0


def test_nodes_that_stay_broken_are_no_green(plain: Recorded) -> None:
    plain.misbehaviours.append(Misbehaviour("/api/v1/nodes", 500))
    verdict = verdict_of(plain.kubeconfig(), *FEWER)
    assert verdict.state is Readiness.UNKNOWN
    assert verdict.exit_code == 4


def test_a_list_whose_pages_grow_too_old_begins_anew(
    plain: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "PAGE", 2)
    look = look_at(plain.kubeconfig())

    def name(raw: dict[str, Any]) -> str:
        if len(plain.requests) == 2:  # after the first page: the second has expired meanwhile
            plain.misbehaviours.append(Misbehaviour("/api/v1/nodes", 410, times=1))
        return str(raw["metadata"]["name"])

    found = look.api.list_all("/api/v1/nodes", name)
    assert found == ("system-0", "gpu-0", "gpu-1", "gpu-2", "gpu-3")


def test_a_failed_webhook_is_named(plain: Recorded) -> None:
    hook = "validator.pytorchjob.training-operator.kubeflow.org"
    message = f'Internal error occurred: failed calling webhook "{hook}": failed to call webhook: refused'
    path = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs"
    plain.misbehaviours.append(Misbehaviour(path, 500, body={"message": message}, method="POST"))
    state, found = outcomes_of(plain)
    assert state is Readiness.NOT_READY
    assert "validator.pytorchjob" in found["webhook"][0].evidence


@pytest.mark.parametrize(
    ("verb", "resource", "severity"),
    [("create", "pytorchjobs", "error"), ("list", "events", "error"), ("list", "nodes", "warning")],
)
def test_a_missing_permission_is_named(verb: str, resource: str, severity: str, plain: Recorded) -> None:
    plain.refused.add((verb, resource))
    _, found = outcomes_of(plain)
    (outcome,) = found["permissions"]
    assert (outcome.severity, f"{verb} {resource}" in outcome.evidence) == (severity, True)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(SCRIPT), *arguments]
    return warm_start.run(line, timeout=120)


def test_the_exit_codes_of_the_script(plain: Recorded, tmp_path: Path) -> None:
    kubeconfig = plain.kubeconfig()
    ready = run("check", "--kubeconfig", str(kubeconfig), *FEWER, "--json")
    assert (ready.returncode, json.loads(ready.stdout)["ready"]) == (0, True), ready.stderr
    too_many = run("check", "--kubeconfig", str(kubeconfig), "--num-nodes", "9", "--json")
    assert (too_many.returncode, json.loads(too_many.stdout)["ready"]) == (1, False)
    assert run("check", "--kubeconfig", str(tmp_path / "missing")).returncode == 2
    plain.tokens.clear()
    refused = run("check", "--kubeconfig", str(kubeconfig))
    assert (refused.returncode, "401" in refused.stderr) == (4, True)
    document = json.loads(kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    kubeconfig.write_text(json.dumps(document))
    unreachable = run("check", "--kubeconfig", str(kubeconfig))
    assert (unreachable.returncode, "could not be reached" in unreachable.stderr) == (4, True)
