"""Objects of the API reduced to values: what pods request, and objects that are not as they should be."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cluster.generated import node, node_pool, pod, resource_slice

from trainyard.cluster import api_objects
from trainyard.cluster.api_objects import node_of, pod_of, pod_requests


def container(cpu: str, *, sidecar: bool = False, limit: bool = False) -> dict[str, Any]:
    resources = {"limits" if limit else "requests": {"cpu": cpu}}
    return {"resources": resources, **({"restartPolicy": "Always"} if sidecar else {})}


@pytest.mark.parametrize(
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


REDUCERS = [
    api_objects.node_of,
    api_objects.pod_of,
    lambda raw: api_objects.read_workload(raw, "DaemonSet"),
    lambda raw: api_objects.read_workload(raw, "Deployment"),
    api_objects.slice_of,
    api_objects.allocations_of,
    api_objects.quota_of,
    api_objects.limits_of,
    api_objects.queue_of,
    api_objects.cluster_queue_of,
    api_objects.flavor_of,
    api_objects.hook_targets_of,
    api_objects.scaler_of,
]
WRONG: list[Any] = [None, 7, "x", [], {}, [7], ["x"], True, 1.5, {"a": None}]


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in inner for found in paths_of(part, (*path, key)))][(not path) :]


HOOK: dict[str, Any] = {
    "failurePolicy": "Fail",
    "rules": [{"apiGroups": ["kubeflow.org"], "operations": ["CREATE"], "resources": ["pytorchjobs"]}],
}
CLAIM = {
    "metadata": {"namespace": "team", "name": "claim"},
    "status": {
        "reservedFor": [{"name": "job-0"}],
        "allocation": {
            "devices": {"results": [{"driver": "gpu.nvidia.com", "pool": "a", "device": "gpu-0"}]}
        },
    },
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
    "slice": (api_objects.slice_of, resource_slice("gpu.nvidia.com", "a", 2)),
    "claim": (api_objects.allocations_of, CLAIM),
    "hooks": (api_objects.hook_targets_of, {"webhooks": [HOOK]}),
    "quota": (api_objects.quota_of, QUOTA),
    "pool": (
        api_objects.scaler_of,
        node_pool("gpu", {"key": "k", "operator": "In", "values": ["v"]}, gpus=8, taints=[{"key": "t"}]),
    ),
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


def test_a_claim_of_a_monitor_holds_nothing() -> None:
    assert api_objects.allocations_of(CLAIM) == (("gpu.nvidia.com/a/gpu-0", "team/job-0"),)
    monitor = json.loads(json.dumps(CLAIM))
    monitor["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    assert api_objects.allocations_of(monitor) is None


@pytest.mark.parametrize("basic", [True, False], ids=["v1beta1", "v1"])
@pytest.mark.parametrize(
    ("attributes", "taints", "counts"),
    [
        ({"type": {"string": "gpu"}}, [], True),
        ({}, [], True),
        ({"type": {"string": "mig"}}, [], False),
        ({"type": {"string": "vfio"}}, [], False),
        ({}, [{"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}], False),
        ({}, [{"key": "gpu.nvidia.com/xid", "effect": "NoExecute"}], False),
        ({}, [{"key": "gpu.nvidia.com/xid", "effect": "None"}], True),
    ],
)
def test_a_device_counts_that_a_pod_can_be_given(
    attributes: Any, taints: Any, counts: bool, basic: bool
) -> None:
    body = {"attributes": attributes, "taints": taints}
    device = {"name": "gpu-0", **({"basic": body} if basic else body)}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "a", "pool": {"name": "a"}, "devices": [device]}
    found = api_objects.slice_of({"spec": spec})
    assert found is not None
    assert found.devices == (("a/gpu-0",) if counts else ())


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_any_json_is_reduced_without_an_error(value: Any) -> None:
    raw = {"metadata": value, "spec": value, "status": value}
    for reduce in REDUCERS:
        reduce(raw)
