"""Objects of the API reduced to values: quantities, what pods request, and objects that are damaged."""

import json
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import each_case
from tests.unit.cluster.generated import node, pod

from trainyard.cluster import api_objects
from trainyard.cluster.api_objects import node_of, pod_of, pod_requests
from trainyard.cluster.resource_quantities import (
    NotAQuantityError,
    format_quantity,
    parse_quantity,
    thousandths,
)


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


FACTORS: dict[str, int | Fraction] = {
    "": 1, "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000),
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
    "e3": 10**3, "E3": 10**3, "e+3": 10**3, "e-3": Fraction(1, 1000), "E0": 1,
}  # fmt: skip
NUMBERS: dict[str, int | Fraction] = {
    "0": 0,
    "1.5": Fraction(3, 2),
    ".5": Fraction(1, 2),
    "5.": 5,
    "+2": 2,
    "-1": -1,
    "007": 7,
}


def test_a_quantity_is_its_number_times_its_suffix() -> None:
    for (number, value), (suffix, factor) in product(NUMBERS.items(), FACTORS.items()):
        assert parse_quantity(number + suffix) == value * factor, number + suffix
    for text in ("Ki", "n", "E", "e3", ".", "+", "-", "+Mi", ".m"):
        assert parse_quantity(text) == 0, "the API server takes them for 0"
    assert parse_quantity(" 1Ki\n") == 1024
    assert parse_quantity("1E") == 10**18, "no exponent"


def test_other_texts_are_none() -> None:
    wrong = ["", "1x", "1ki", "1K", "1e", "1e3Ki", "1,5", "1_0", "٣"]
    for text in (*wrong, "1" * 65):
        with pytest.raises(NotAQuantityError):
            parse_quantity(text)


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_whole_numbers_are_themselves(number: int) -> None:
    assert parse_quantity(number) == parse_quantity(str(number)) == number
    assert thousandths(number) == 1000 * number


@given(st.integers(min_value=0, max_value=10**12))
def test_thousandths_round_up(nano: int) -> None:
    assert thousandths(f"{nano}n") == -(-nano // 10**6)


@pytest.mark.parametrize(
    ("amount", "resource", "text"),
    [
        ("2Ti", "memory", "2 TiB"),
        ("1536Mi", "memory", "1.5 GiB"),
        ("512", "ephemeral-storage", "512 B"),
        ("95690m", "cpu", "95.69"),
        ("8", "nvidia.com/gpu", "8"),
    ],
)
def test_amounts_are_written_for_people(amount: str, resource: str, text: str) -> None:
    assert format_quantity(thousandths(amount), resource) == text
