"""A job under its next name: what is kept, what is left out, and which references follow."""

import copy
import json
from typing import Any

import pytest
from tests.unit.jobs.plans import instance_for, plan, pod_specs

from trainyard.errors import ConfigError
from trainyard.jobs.job_kind import JobKind
from trainyard.jobs.kinds import KINDS, find_kind
from trainyard.jobs.resubmission import avoid_nodes, make_resubmission, next_name
from trainyard.jobs.state.reading import name_of
from trainyard.watch.retry_decision import AvoidedNode

Json = dict[str, Any]
SERVER_FIELDS: Json = {
    "uid": "u",
    "resourceVersion": "5",
    "generation": 2,
    "creationTimestamp": "2026-11-20T00:00:00Z",
    "deletionTimestamp": "2026-11-20T00:00:00Z",
    "finalizers": ["x"],
    "managedFields": [{}],
    "ownerReferences": [{}],
    "selfLink": "/x",
}


def job(kind: str, spec: Json, **annotations: str) -> Json:
    of_kind = find_kind(kind)
    return {
        "apiVersion": of_kind.api.group_version,
        "kind": of_kind.api_kind,
        "metadata": {
            "name": "llama",
            "namespace": "team",
            "labels": {"trainyard.dev/job": "llama", "team": "llama", "kueue.x-k8s.io/queue-name": "main"},
            "annotations": {"trainyard.dev/plan": '{"name":"llama","nodes":2}', **annotations},
            **SERVER_FIELDS,
        },
        "spec": spec,
        "status": {"conditions": [{"type": "Failed", "status": "True"}]},
    }


def template() -> Json:
    return {
        "metadata": {"labels": {"trainyard.dev/job": "llama"}},
        "spec": {
            "containers": [
                {"name": "llama", "args": ["--name", "llama"], "env": [{"name": "X", "value": "llama"}]}
            ],
            "volumes": [
                {"name": "files", "configMap": {"name": "llama-files"}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "llama"}},
            ],
        },
    }


SPECS: dict[str, Json] = {
    "pytorchjob": {
        "runPolicy": {"suspend": True},
        "pytorchReplicaSpecs": {"Master": {"template": template()}},
    },
    "trainjob": {"suspend": True, "runtimeRef": {"kind": "TrainingRuntime", "name": "llama"}},
    "rayjob": {
        "suspend": True,
        "jobId": "old",
        "rayClusterSpec": {"headGroupSpec": {"template": template()}},
    },
    "raycluster": {"suspend": True, "headGroupSpec": {"template": template()}},
    "hyperpod": {"replicaSpecs": [{"template": template()}]},
}
PARTS: list[Json] = [
    {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "llama-files", "labels": {"trainyard.dev/job": "llama"}, **SERVER_FIELDS},
        "data": {"config.yaml": "llama", "job.json": '{"uid": "of the job before"}'},
    },
    {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": "llama", "labels": {"trainyard.dev/job": "llama"}, **SERVER_FIELDS},
        "spec": {"template": template()},
    },
]


@pytest.mark.parametrize("kind", SPECS)
def test_only_what_is_ours_is_created_again(kind: str) -> None:
    raw, parts = job(kind, SPECS[kind], **{"trainyard.dev/cancelled": "x"}), PARTS
    before = copy.deepcopy((raw, parts))
    new = make_resubmission(find_kind(kind), raw, parts, name="llama-2", retries=1)
    assert (raw, parts) == before
    for body in (new.job, *new.parts):
        assert set(body["metadata"]) <= {"name", "namespace", "labels", "annotations"}
        assert "status" not in body
        assert body["metadata"]["labels"]["trainyard.dev/job"] == "llama-2"
    notes = new.job["metadata"]["annotations"]
    assert "trainyard.dev/cancelled" not in notes
    assert json.loads(notes["trainyard.dev/plan"]) == {"name": "llama-2", "nodes": 2}
    assert (notes["trainyard.dev/retries"], notes["trainyard.dev/first-name"]) == ("1", "llama")
    text = json.dumps(new.job)
    assert '"suspend"' not in text
    assert '"jobId"' not in text
    assert [part["metadata"]["name"] for part in new.parts] == ["llama-2-files", "llama-2"]
    assert new.parts[0]["data"] == {"config.yaml": "llama"}


def test_references_follow_and_nothing_else_does() -> None:
    new = make_resubmission(
        find_kind("pytorchjob"), job("pytorchjob", SPECS["pytorchjob"]), PARTS, name="llama-2"
    )
    pod = new.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    assert pod["metadata"]["labels"] == {"trainyard.dev/job": "llama-2"}
    assert pod["spec"]["containers"] == template()["spec"]["containers"]
    assert pod["spec"]["volumes"][0]["configMap"] == {"name": "llama-2-files"}
    assert pod["spec"]["volumes"][1] == template()["spec"]["volumes"][1]
    assert new.job["metadata"]["labels"]["team"] == "llama"
    assert new.job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "main"
    train = make_resubmission(
        find_kind("trainjob"), job("trainjob", SPECS["trainjob"]), PARTS, name="llama-2"
    )
    assert train.job["spec"]["runtimeRef"]["name"] == "llama-2"
    assert [name_of(body) for body in train.all] == ["llama-2-files", "llama-2", "llama-2"]


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_the_next_name_is_the_first_that_is_free_and_never_too_long(kind: JobKind) -> None:
    raw = job("pytorchjob", {})
    assert next_name(kind, raw, []) == "llama-2"
    assert next_name(kind, raw, ["llama", "llama-2", "llama-4"]) == "llama-3"
    third = job("pytorchjob", {}, **{"trainyard.dev/first-name": "llama"})
    third["metadata"]["name"] = "llama-3"
    assert next_name(kind, third, ["llama-2", "llama-3"]) == "llama-4"
    long = job("pytorchjob", {})
    long["metadata"]["name"] = "a" * (kind.longest_name - 3) + "-bcdefgh"
    assert len(next_name(kind, long, [])) <= kind.longest_name
    assert "--" not in next_name(kind, long, [])


@pytest.mark.parametrize("plan", ["", "{", "[]", '"x"'])
def test_a_plan_that_cannot_be_read_is_left_as_it_is(plan: str) -> None:
    raw = job("pytorchjob", {}, **{"trainyard.dev/plan": plan})
    new = make_resubmission(find_kind("pytorchjob"), raw, [], name="llama-2")
    assert new.job["metadata"]["annotations"].get("trainyard.dev/plan", "") == plan


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_job_is_suspended_where_its_kind_has_the_field(kind: JobKind) -> None:
    raw = job(kind.name, {"shutdownAfterJobFinishes": True})
    if kind.name == "hyperpod":
        with pytest.raises(ConfigError, match="delete"):
            kind.suspension(raw)
        return
    patch = kind.suspension(raw)
    inner = patch["spec"]["runPolicy"] if kind.name == "pytorchjob" else patch["spec"]
    assert inner == {"suspend": True}


@pytest.mark.parametrize(
    "spec", [{}, {"shutdownAfterJobFinishes": True, "clusterSelector": {"ray.io/cluster": "x"}}]
)
def test_a_rayjob_that_kuberay_would_refuse_to_suspend_is_left_alone(spec: Json) -> None:
    with pytest.raises(ConfigError, match="delete"):
        find_kind("rayjob").suspension(job("rayjob", spec))


# Pods stay away from nodes that failed, in the objects of all kinds, and nothing else changes.

STRICT, SOFT = AvoidedNode("n1", strictly=True), AvoidedNode("n2", strictly=False)
NOT_N1 = {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}


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
