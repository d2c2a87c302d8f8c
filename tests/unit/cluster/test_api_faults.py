"""The API misbehaves: refusals, overload, failures, time-outs, tokens that run out in the middle."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start
from tests.unit.cluster.generated import plain_eks
from tests.unit.cluster.judging import SCRIPT, look_at, verdict_of
from tests.unit.cluster.recorded import Misbehaviour, Recorded, serving

from trainyard.cluster.verdict import Readiness
from trainyard.errors import CredentialsRefusedError, ServiceError, ServiceTroubleError
from trainyard.gateways.kubernetes import api_requests as api_module

PLAN = ("--num-nodes", "4", "--instance-type", "p5.48xlarge", "--volume", "checkpoints")
LISTS = {
    "/api/v1/nodes": {"gpu", "node-health"},
    "/api/v1/pods": {"capacity"},
    "/apis/apps/v1/daemonsets": {"device-plugin"},
    "/apis/apps/v1/deployments": {"operator"},
    "/api/v1/namespaces/team/resourcequotas": {"quota"},
    "/api/v1/namespaces/team/limitranges": {"quota"},
    "/api/v1/namespaces/team/persistentvolumeclaims/checkpoints": {"storage"},
    "/apis/storage.k8s.io/v1/csidrivers": set(),
}
"""A list that may not be read -> the checks that report it."""


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    monkeypatch.setattr(api_module, "_PAUSES", (0.01, 0.01, 0.01))
    with serving(plain_eks().state) as served:
        yield served


def outcomes_of(recorded: Recorded, folder: Path, *options: str) -> tuple[Readiness, dict[str, list[Any]]]:
    verdict = verdict_of(recorded.kubeconfig(folder), *PLAN, *options)
    found: dict[str, list[Any]] = {}
    for finding in verdict.findings:
        found.setdefault(finding.subject, []).append(finding)
    return verdict.state, found


@pytest.mark.parametrize("path", LISTS)
def test_a_refusal_of_one_resource_is_said_by_its_check_and_the_others_go_on(
    path: str, recorded: Recorded, tmp_path: Path
) -> None:
    recorded.misbehaviours.append(Misbehaviour(path, 403))
    state, found = outcomes_of(recorded, tmp_path)
    for check in LISTS[path]:
        assert any(o.severity == "skipped" and "not allowed" in o.evidence for o in found[check]), found[
            check
        ]
    assert not any(outcome.severity == "error" for outcomes in found.values() for outcome in outcomes)
    assert all(len(outcomes) > 0 for outcomes in found.values())
    assert state is (Readiness.UNKNOWN if path == "/api/v1/nodes" else Readiness.READY)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
@pytest.mark.parametrize("path", ["/version", "/api/v1/nodes", "/api/v1/pods", "/apis"])
def test_a_fault_that_heals_is_waited_out(path: str, status: int, recorded: Recorded, tmp_path: Path) -> None:
    recorded.misbehaviours.append(Misbehaviour(path, status, {"Retry-After": "0"}, times=2))
    assert outcomes_of(recorded, tmp_path)[0] is Readiness.READY


def test_retry_after_is_obeyed(recorded: Recorded, tmp_path: Path) -> None:
    recorded.misbehaviours.append(Misbehaviour("/api/v1/nodes", 429, {"Retry-After": "1"}, times=1))
    started = time.monotonic()
    assert outcomes_of(recorded, tmp_path)[0] is Readiness.READY
    assert time.monotonic() - started >= 1.0


@pytest.mark.parametrize("status", [500, 0])
def test_a_list_that_stays_broken_leaves_the_rest(status: int, recorded: Recorded, tmp_path: Path) -> None:
    recorded.misbehaviours.append(Misbehaviour("/apis/apps/v1/daemonsets", status))
    state, found = outcomes_of(recorded, tmp_path)
    assert found["device-plugin"][0].severity == "skipped"
    assert "could not be read" in found["device-plugin"][0].evidence
    assert state is Readiness.READY


def test_nodes_that_stay_broken_are_no_green(recorded: Recorded, tmp_path: Path) -> None:
    recorded.misbehaviours.append(Misbehaviour("/api/v1/nodes", 500))
    verdict = verdict_of(recorded.kubeconfig(tmp_path), *PLAN)
    assert verdict.state is Readiness.UNKNOWN
    assert verdict.exit_code == 4


def test_an_expired_token_is_renewed_in_the_middle(recorded: Recorded, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("good")
    kubeconfig = recorded.kubeconfig(tmp_path, tokenFile="token")
    look = look_at(kubeconfig, *PLAN)
    assert look.api.get("/version")
    recorded.tokens = {"renewed"}
    token.write_text("renewed")
    assert isinstance(look.snapshot(lambda **_: None).nodes, tuple)


def test_an_expired_token_that_cannot_be_renewed_ends_it(recorded: Recorded, tmp_path: Path) -> None:
    look = look_at(recorded.kubeconfig(tmp_path), *PLAN)
    assert look.api.get("/version")
    recorded.tokens = {"another"}
    with pytest.raises(CredentialsRefusedError, match="401"):
        look.snapshot(lambda **_: None)


def test_a_call_that_hangs_is_given_up(recorded: Recorded, tmp_path: Path) -> None:
    recorded.misbehaviours.append(Misbehaviour("/version", 200, delay=2.0))
    look = look_at(recorded.kubeconfig(tmp_path), *PLAN, call_seconds=0.2)
    with pytest.raises(ServiceTroubleError, match="could not be reached"):
        look.snapshot(lambda **_: None)


def test_a_list_whose_pages_grow_too_old_begins_anew(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "PAGE", 2)
    look = look_at(recorded.kubeconfig(tmp_path))

    def name(raw: dict[str, Any]) -> str:
        if len(recorded.requests) == 2:  # after the first page: the second has expired meanwhile
            recorded.misbehaviours.append(Misbehaviour("/api/v1/nodes", 410, times=1))
        return str(raw["metadata"]["name"])

    found = look.api.list_all("/api/v1/nodes", name)
    assert found == ("system-0", "gpu-0", "gpu-1", "gpu-2", "gpu-3")


def test_an_answer_that_is_no_json_is_said(recorded: Recorded, tmp_path: Path) -> None:
    look = look_at(recorded.kubeconfig(tmp_path))
    recorded.misbehaviours.append(Misbehaviour("/version", 200, body={}))
    with pytest.raises(ServiceError, match="not a Kubernetes API server"):
        look.snapshot(lambda **_: None)


def test_a_failed_webhook_is_named(recorded: Recorded, tmp_path: Path) -> None:
    hook = "validator.pytorchjob.training-operator.kubeflow.org"
    message = f'Internal error occurred: failed calling webhook "{hook}": failed to call webhook: refused'
    path = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs"
    recorded.misbehaviours.append(Misbehaviour(path, 500, body={"message": message}, method="POST"))
    state, found = outcomes_of(recorded, tmp_path)
    assert state is Readiness.NOT_READY
    assert "validator.pytorchjob" in found["webhook"][0].evidence


@pytest.mark.parametrize(
    ("verb", "resource", "severity"),
    [("create", "pytorchjobs", "error"), ("list", "events", "error"), ("list", "nodes", "warning")],
)
def test_a_missing_permission_is_named(
    verb: str, resource: str, severity: str, recorded: Recorded, tmp_path: Path
) -> None:
    recorded.refused.add((verb, resource))
    _, found = outcomes_of(recorded, tmp_path)
    (outcome,) = found["permissions"]
    assert (outcome.severity, f"{verb} {resource}" in outcome.evidence) == (severity, True)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(SCRIPT), *arguments]
    return warm_start.run(line, timeout=120)


def test_the_exit_codes_of_the_script(recorded: Recorded, tmp_path: Path) -> None:
    kubeconfig = recorded.kubeconfig(tmp_path)
    ready = run("check", "--kubeconfig", str(kubeconfig), *PLAN, "--json")
    assert (ready.returncode, json.loads(ready.stdout)["ready"]) == (0, True), ready.stderr
    too_many = run("check", "--kubeconfig", str(kubeconfig), "--num-nodes", "9", "--json")
    assert (too_many.returncode, json.loads(too_many.stdout)["ready"]) == (1, False)
    assert run("check", "--kubeconfig", str(tmp_path / "missing")).returncode == 2
    recorded.tokens.clear()
    refused = run("check", "--kubeconfig", str(kubeconfig))
    assert (refused.returncode, "401" in refused.stderr) == (4, True)
    document = json.loads(kubeconfig.read_text())
    document["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    kubeconfig.write_text(json.dumps(document))
    unreachable = run("check", "--kubeconfig", str(kubeconfig))
    assert (unreachable.returncode, "could not be reached" in unreachable.stderr) == (4, True)
