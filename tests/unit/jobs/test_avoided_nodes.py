"""Pods stay away from nodes that failed, in the objects of all kinds, and nothing else changes."""

import copy
from typing import Any

import pytest
from tests.unit.jobs.plans import instance_for, plan

from trainyard.jobs.kinds import KINDS
from trainyard.jobs.resubmission import avoid_nodes
from trainyard.watch.retry_decision import AvoidedNode

Json = dict[str, Any]
STRICT, SOFT = AvoidedNode("n1", strictly=True), AvoidedNode("n2", strictly=False)
NOT_N1 = {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}


def pod_specs(value: Any) -> list[Json]:
    if isinstance(value, list):
        return [spec for entry in value for spec in pod_specs(entry)]
    if not isinstance(value, dict):
        return []
    own = [value] if isinstance(value.get("containers"), list) else []
    return own + [spec for entry in value.values() for spec in pod_specs(entry)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_pod_of_every_kind_stays_away(kind: str) -> None:
    wanted = plan(kind=kind, instance_type=instance_for(kind, "p5.48xlarge"), nodes=2)
    manifests = KINDS[kind].render(wanted)
    specs = []
    for body in manifests.all:
        before = copy.deepcopy(body)
        changed = avoid_nodes(body, [STRICT, SOFT])
        assert body == before, "the object that was given is left alone"
        assert avoid_nodes(changed, [STRICT, SOFT]) == changed, "a second time changes nothing"
        for spec in pod_specs(changed):
            affinity = spec["affinity"].pop("nodeAffinity")
            specs.append(affinity)
            if not spec["affinity"]:
                del spec["affinity"]
        assert changed == before, "nothing else was changed"
    assert specs
    for affinity in specs:
        required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert required == [{"matchFields": [NOT_N1]}]
        preferred = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
        assert preferred[0]["preference"]["matchFields"][0]["values"] == ["n2"]


def test_every_alternative_of_the_users_own_affinity_keeps_away() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [z]}]} for z in "ab"]
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    body = {"spec": {"containers": [], "affinity": {"nodeAffinity": affinity}}}
    found = avoid_nodes(body, [STRICT])["spec"]["affinity"]["nodeAffinity"]
    for term in found["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]:
        assert term["matchFields"] == [NOT_N1] and term["matchExpressions"]


def test_without_nodes_nothing_changes() -> None:
    body: Json = {"spec": {"containers": []}}
    assert avoid_nodes(body, []) == body
