"""HyperPod: its description and the queries to Prometheus."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests.answering import answering

from trainyard.cluster.hyperpod import hyperpod_record, measured_use, queries
from trainyard.errors import ConfigError, PermissionRefusedError, ServiceError
from trainyard.gateways.prometheus import Prometheus


def test_a_description_becomes_a_record() -> None:
    described = {
        "ClusterName": "pod",
        "ClusterStatus": "InService",
        "NodeRecovery": "Automatic",
        "Orchestrator": {"Eks": {"ClusterArn": "arn:aws:eks:us-west-2:1:cluster/behind"}},
        "InstanceGroups": [
            {"InstanceGroupName": "w", "InstanceType": "ml.p5.48xlarge", "CurrentCount": 1, "TargetCount": 2}
        ],
    }
    nodes = [
        {"InstanceId": "i-1", "InstanceGroupName": "w", "InstanceStatus": {"Status": "Running"}},
        {
            "InstanceId": "i-2",
            "InstanceGroupName": "w",
            "InstanceStatus": {"Status": "Failure", "Message": "x"},
        },
    ]
    record = hyperpod_record(described, nodes, "us-west-2")
    assert (record["eks_cluster"], record["node_recovery"], record["nodes"]) == ("behind", "Automatic", 2)
    assert [node["id"] for node in record["unhealthy"]] == ["i-2"]
    assert hyperpod_record({}, (), "us-west-2")["eks_cluster"] == ""


def test_queries_name_the_nodes_and_nothing_else_can_be_put_in() -> None:
    found = queries(['a.b"} or vector(1)', "node-1"])
    assert all('Hostname=~"a\\\\.b' in text for text in found.values())
    assert all('"} or' not in text.replace('\\"', "") for text in found.values())
    assert queries([]).keys() == found.keys()


@pytest.fixture
def workspace() -> Iterator[tuple[str, list[Any]]]:
    seen: list[Any] = []

    def answer(_method: str, path: str, body: Any, headers: Mapping[str, str]) -> tuple[int, Any]:
        seen.append((path, dict(headers), body))
        series = [{"metric": {"Hostname": "n1"}, "value": [1, "42.5"]}]
        series.append({"metric": {"Hostname": "n2"}, "value": [1, "NaN"]})
        status = 403 if "/denied" in path else 503 if len(seen) == 1 and "/flaky" in path else 200
        return status, {"status": "success", "data": {"result": series}}

    with answering(answer) as url:
        yield url, seen


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def test_figures_are_asked_with_signed_requests(workspace: tuple[str, list[Any]]) -> None:
    url, seen = workspace
    use = measured_use(["n1", "n2"], Prometheus(f"{url}/workspaces/ws-1", region="eu-west-1").query)
    assert list(use) == ["n1"]
    assert use["n1"]["gpu_utilization_percent"] == 42.5
    path, headers, _ = seen[0]
    assert path == "/workspaces/ws-1/api/v1/query"
    assert "/eu-west-1/aps/aws4_request" in headers["Authorization"]
    assert measured_use([], Prometheus(url, region="eu-west-1").query) == {}


def test_a_refusal_is_said_and_a_failure_tried_again(workspace: tuple[str, list[Any]]) -> None:
    url, seen = workspace
    assert Prometheus(f"{url}/flaky", region="eu-west-1").query("up")
    assert len(seen) == 2
    with pytest.raises(PermissionRefusedError, match="403"):
        Prometheus(f"{url}/denied", region="eu-west-1").query("up")


@pytest.mark.slow
def test_a_region_is_needed() -> None:
    with pytest.raises(ConfigError, match="--region"):
        Prometheus("https://aps.example", region="")
    with pytest.raises(ConfigError, match="not an address"):
        Prometheus("aps", region="us-west-2")
    with pytest.raises(ServiceError):
        Prometheus("http://127.0.0.1:9", region="us-west-2").query("up")
