"""Objects of the API reduced to values: what pods request, and objects that are not as they should be."""

import json
from typing import Any

import pytest
from tests.cases import each_case
from tests.unit.cluster.generated import node, pod

from trainyard.cluster import api_objects
from trainyard.cluster.api_objects import node_of, pod_of, pod_requests


def container(cpu: str, *, sidecar: bool = False, limit: bool = False) -> dict[str, Any]:
    resources = {"limits" if limit else "requests": {"cpu": cpu}}
    return {"resources": resources, **({"restartPolicy": "Always"} if sidecar else {})}


@each_case(
    ("spec", "cpu"),
    [
        ({"containers": [container("1"), container("500m")]}, 1500),
        ({"containers": [container("2", limit=True)]}, 2000),
        ({"containers": [container("1")], "initContainers": [container("3")]}, 3000),
        ({"containers": [container("1")], "initContainers": [container("1", sidecar=True)]}, 2000),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("1", sidecar=True), container("3")],
            },
            4000,
        ),
        (
            {
                "containers": [container("1")],
                "initContainers": [container("3"), container("1", sidecar=True)],
            },
            3000,
        ),
        ({"containers": [container("1")], "overhead": {"cpu": "250m"}}, 1250),
        ({"containers": [container("1")], "resources": {"requests": {"cpu": "6"}}}, 6000),
        ({"containers": []}, None),
    ],
)
def test_a_pod_requests_what_the_scheduler_reserves(spec: dict[str, Any], cpu: int | None) -> None:
    assert pod_requests(spec).get("cpu") == cpu


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_holds_nothing(phase: str) -> None:
    body = pod("a-0", "node", gpus=8)
    body["status"]["phase"] = phase
    assert pod_of(body) is None


def test_a_pod_that_is_being_deleted_still_holds_its_gpus() -> None:
    body = pod("job-worker-0", "node", gpus=8)
    body["metadata"]["deletionTimestamp"] = "2026-11-20T21:58:54Z"
    found = pod_of(body)
    assert found is not None
    assert found.requests["nvidia.com/gpu"] == 8000
    assert found.owner == "job-worker"


WRONG: list[Any] = [None, 7, "x", [], {}, [7], ["x"], True, 1.5, {"a": None}]


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in inner for found in paths_of(part, (*path, key)))][(not path) :]


HOOK: dict[str, Any] = {
    "failurePolicy": "Fail",
    "rules": [{"apiGroups": ["kubeflow.org"], "operations": ["CREATE"], "resources": ["pytorchjobs"]}],
}
SCOPE = {"scopeName": "PriorityClass", "operator": "In", "values": ["gold"]}
QUOTA = {
    "metadata": {"name": "q"},
    "spec": {"scopes": ["NotTerminating"], "scopeSelector": {"matchExpressions": [SCOPE]}},
    "status": {"hard": {"pods": "1"}, "used": {"pods": "0"}},
}
OBJECTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "node": (node_of, node("a", "p5.48xlarge")),
    "pod": (pod_of, pod("b-0", "a", gpus=8)),
    "hooks": (api_objects.hook_targets_of, {"webhooks": [HOOK]}),
    "quota": (api_objects.quota_of, QUOTA),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_a_field_of_another_type_counts_as_absent(name: str) -> None:
    reduce, body = OBJECTS[name]
    for path in paths_of(body):
        for wrong in WRONG:
            damaged = json.loads(json.dumps(body))
            place = damaged
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = wrong
            reduce(damaged)


@pytest.mark.parametrize(
    ("change", "hooked"),
    [
        ({}, ("pytorchjobs.kubeflow.org",)),
        ({"failurePolicy": "Ignore"}, ()),
        ({"rules": [{**HOOK["rules"][0], "operations": ["UPDATE", "DELETE"]}]}, ()),
        ({"rules": [{**HOOK["rules"][0], "operations": ["*"]}]}, ("pytorchjobs.kubeflow.org",)),
        ({"rules": [*HOOK["rules"], {**HOOK["rules"][0], "apiGroups": ["kueue.x-k8s.io"]}]}, ()),
    ],
)
def test_a_webhook_proves_its_controller_only_where_it_must_answer(change: Any, hooked: Any) -> None:
    assert api_objects.hook_targets_of({"webhooks": [HOOK | change]}) == hooked
