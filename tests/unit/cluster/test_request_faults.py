"""Requests of a check meet faults of an API server: no crash, no false green, no false red.

Every request meets every fault that its own check judges. The gateway handles six faults for all requests in
one place; each request meets two of them.

request × fault ──> goes away: as without a fault
                    401: the credentials are refused
                    stays: its check reports that it could not read; an essential one gives `not known`
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.unit.cluster.generated import NAMESPACE, Json, State, plain_eks, put
from tests.unit.cluster.judging import look_at
from tests.unit.cluster.recorded import Misbehaviour, Recorded, serving

from trainyard.cluster.verdict import Readiness as Verdict
from trainyard.errors import CredentialsRefusedError, ServiceError
from trainyard.gateways.kubernetes import api_requests as api_module
from trainyard.plan.finding import Severity

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
PLAN = (
    *("--num-nodes", "4", "--instance-type", "p5.48xlarge", "--volume", "checkpoints", "--secret", "hf"),
    *("--queue", "main", "--priority-class", "gold"),
)
ESSENTIAL = {"/api/v1/nodes": "gpu", "/apis": "job-api", "/apis/kubeflow.org/v1": "job-api"}
"""Requests without which it is not known whether a cluster is ready -> the check that reports it."""
TRIALS = (
    f"/api/v1/namespaces/{NAMESPACE}/pods",
    f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs",
)
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
    put(state, "/apis/scheduling.k8s.io/v1/priorityclasses", _object_named("gold"))
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
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    monkeypatch.setattr(api_module, "_PAUSES", (0.001, 0.001, 0.001))
    with serving(cluster()) as served:
        served.groups["kueue.x-k8s.io"] = ("v1beta2",)
        yield served


def test_the_check_of_this_cluster_is_ready(recorded: Recorded, tmp_path: Path) -> None:
    assert judge(recorded, tmp_path) == (Verdict.READY, {})
    assert len(requests_of(recorded)) >= 24


QUICK = ("403", "429", "hangs up", "a page of a proxy")
OF_THE_GATEWAY = ("401", "429 once", "500", "503 twice", "hangs up once", "hangs")
PLANTED = [
    pytest.param(fault, id=fault.name, marks=() if fault.name in QUICK else pytest.mark.slow)
    for fault in FAULTS
]


@pytest.mark.parametrize("fault", PLANTED)
def test_every_request_meets_this_fault(fault: ApiFault, recorded: Recorded, tmp_path: Path) -> None:
    judge(recorded, tmp_path)
    wrong = {}
    turn, by = (OF_THE_GATEWAY.index(fault.name) % 3, 3) if fault.name in OF_THE_GATEWAY else (0, 1)
    for method, path in requests_of(recorded)[turn::by]:
        bad = Misbehaviour(path, fault.status, fault.headers, times=fault.times, delay=fault.delay)
        recorded.misbehaviours[:] = [replace(bad, method=method, whole=True, text=fault.text)]
        if problem := dishonest(path, fault, recorded, tmp_path):
            wrong[method, path] = problem
    assert wrong == {}


def requests_of(recorded: Recorded) -> list[tuple[str, str]]:
    """Method and path of every request so far."""
    split = (request.split(" ", 1) for request in recorded.requests)
    return sorted({(method, urlsplit(path).path) for method, path in split})


def dishonest(path: str, fault: ApiFault, recorded: Recorded, folder: Path) -> str:
    """The error in the check's report; empty where the report is honest."""
    try:
        state, said = judge(recorded, folder, seconds=0.3 if fault.delay else 20.0)
    except CredentialsRefusedError as error:
        return "" if fault.status == 401 else str(error)
    except ServiceError as error:
        return "" if path == "/version" and not fault.heals else str(error)
    if fault.status == 401 or (path == "/version" and not fault.heals):
        return "nothing was raised"
    if fault.heals:
        return "" if (state, said) == (Verdict.READY, {}) else f"{state}: {said}"
    return _false_claim(path, fault, state, said)


def _false_claim(path: str, fault: ApiFault, state: Verdict, said: dict[str, list[Severity]]) -> str:
    """The error where something unread is called faulty, or where the cluster is called ready without it."""
    if fault.text.startswith("{"):  # a valid answer, if a strange one: there are no objects
        return ""
    expected = Verdict.UNKNOWN if path in ESSENTIAL else Verdict.READY
    if path in TRIALS and fault.status == 403:  # a valid answer, too: the job is not admitted
        expected = Verdict.NOT_READY
    if state is not expected:
        return f"{state}: {said}"
    if path in ESSENTIAL and Severity.SKIPPED not in said.get(ESSENTIAL[path], ()):
        return f"{ESSENTIAL[path]} says nothing"
    return ""


def judge(
    recorded: Recorded, folder: Path, *, seconds: float = 20.0
) -> tuple[Verdict, dict[str, list[Severity]]]:
    """The verdict, and the severities of each check's findings that did not pass."""
    look = look_at(recorded.kubeconfig(folder), *PLAN, call_seconds=seconds)
    verdict = look.judge(lambda **_: None)
    said: dict[str, list[Severity]] = {}
    for finding in verdict.findings:
        if finding.severity is not Severity.PASSED and finding.subject != "image":
            said.setdefault(finding.subject, []).append(finding.severity)
    return verdict.state, said
