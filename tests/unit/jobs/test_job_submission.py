"""A job is submitted with all of its parts, whatever is refused meanwhile; and again under its next name."""

import copy
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.gateways.kubernetes.memory_cluster import CUT_AFTER, CUT_BEFORE, MemoryCluster
from tests.unit.jobs.plans import instance_for, plan, pod_specs

from trainyard import errors
from trainyard.cluster import server_side_apply
from trainyard.gateways import bounded_calls
from trainyard.gateways.kubernetes.api import Api
from trainyard.jobs.job_kind import JobKind, Manifests
from trainyard.jobs.job_submission import creator, find, refusals, submit
from trainyard.jobs.kinds import KINDS, find_kind
from trainyard.jobs.resubmission import avoid_nodes, make_resubmission, next_name
from trainyard.jobs.state.reading import name_of
from trainyard.run.identity import job_facts
from trainyard.watch.retry_decision import AvoidedNode

Json = dict[str, Any]
SPACE = "/api/v1/namespaces/team"
JOBS = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs"
PATHS = [
    f"{SPACE}/configmaps/shared",
    f"{SPACE}/configmaps/llama",
    f"{SPACE}/services/llama",
    f"{JOBS}/llama",
]
REFUSALS: dict[int, type[errors.TrainyardError]] = {
    401: errors.CredentialsRefusedError,
    403: errors.PermissionRefusedError,
    **dict.fromkeys((409, 410, 422, 429, 500), errors.ServiceError),
    **dict.fromkeys((404, 503), errors.WaitTimeoutError),
    **dict.fromkeys((CUT_BEFORE, CUT_AFTER), errors.ServiceTroubleError),
}
"""404 and 503 mean that the kind is not served yet."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_side_apply, "_PAUSE", 0.01)
    monkeypatch.setattr(bounded_calls, "FIRST_SECONDS", 0.001)
    monkeypatch.setitem(server_side_apply.apply_all.__kwdefaults__ or {}, "seconds", 1.0)


def body(kind: str, name: str = "llama", version: str = "v1", **more: Any) -> Json:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": "team", "labels": {"trainyard.dev/job": "llama"}},
        **more,
    }


SHARED = body("ConfigMap", "shared")
PARTS = [body("ConfigMap", data={"train.py": "x = 1"}), body("Service", spec={"clusterIP": "None"})]
JOB = body("PyTorchJob", version="kubeflow.org/v1", spec={"runPolicy": {}})


def submitted(cluster: MemoryCluster) -> Json:
    return submit(Api(cluster.access()), Manifests(JOB, parts=tuple(PARTS), shared=(SHARED,)))


def assert_whole(cluster: MemoryCluster) -> None:
    """Every object exists once; the job owns its parts, and not the shared objects."""
    assert sorted(cluster.objects) == sorted(PATHS)
    uid = cluster.objects[PATHS[3]]["metadata"]["uid"]
    owners = [cluster.objects[path]["metadata"].get("ownerReferences") for path in PATHS]
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "llama", "uid": uid}
    owned = [{**owner, "blockOwnerDeletion": False}]
    assert owners == [None, owned, owned, None]
    named = {"kind": "PyTorchJob", "name": "llama", "uid": uid, "namespace": "team"}
    assert job_of(cluster) == named
    assert cluster.objects[PATHS[1]]["data"].keys() == {"train.py", "job.json"}


def job_of(cluster: MemoryCluster) -> Json:
    """The job that a run in the pods records, from the files that they mount."""
    with TemporaryDirectory() as folder:
        for name, text in cluster.objects[PATHS[1]]["data"].items():
            Path(folder, name).write_text(text)
        return job_facts(Path(folder))


def test_a_job_comes_after_its_parts_and_then_owns_them(cluster: MemoryCluster) -> None:
    made = submitted(cluster)
    assert made == cluster.objects[PATHS[3]]
    assert_whole(cluster)
    assert [path for _, path in cluster.changes()] == [*PATHS, *PATHS[1:3]]
    cluster.remove(PATHS[3])
    assert list(cluster.objects) == [PATHS[0]], "what is shared stays"


@pytest.mark.slow
@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("status", REFUSALS)
def test_a_refusal_at_any_step_names_the_object_and_the_next_try_completes_it(
    cluster: MemoryCluster, step: int, status: int
) -> None:
    order = [*PATHS, *PATHS[1:3]]
    path, second = order[step], step > 3
    if second:
        cluster.before = lambda method, seen: (
            cluster.fault("PATCH", path, status) if (method, seen) == ("PATCH", PATHS[3]) else None
        )
    else:
        cluster.fault("PATCH", path, status)
    with pytest.raises(REFUSALS[status]) as caught:
        submitted(cluster)
    if status == 401:
        assert "renew the credentials" in str(caught.value)
    elif status > 0:
        assert f"/{path.rpartition('/')[2]}" in str(caught.value)
        assert status in (404, 503) or f"({status}): planted" in str(caught.value)
    assert (PATHS[3] in cluster.objects) == (second or (step == 3 and status == CUT_AFTER))
    cluster.faults.clear()
    cluster.before = lambda _method, _path: None
    submitted(cluster)
    assert_whole(cluster)


def test_a_webhook_that_has_not_seen_a_part_yet_is_asked_again(cluster: MemoryCluster) -> None:
    """Just after its runtime was created, Trainer 2 refuses a TrainJob with 403."""
    denied = "admission webhook denied the request: runtime n must be created before the TrainJob is created"
    cluster.fault("PATCH", PATHS[3], 403, times=3, message=denied)
    submitted(cluster)
    assert_whole(cluster)
    cluster.fault("PATCH", PATHS[3], 403, message=denied)
    with pytest.raises(errors.PermissionRefusedError, match="must be created before"):
        submitted(cluster)


def test_a_kind_that_is_not_served_is_named(cluster: MemoryCluster) -> None:
    del cluster.served["/apis/kubeflow.org/v1"]
    with pytest.raises(
        errors.WaitTimeoutError, match=r"PyTorchJob/llama: the cluster does not serve kubeflow\.org/v1"
    ):
        submitted(cluster)


def test_a_namespace_that_is_not_there_is_not_waited_for(cluster: MemoryCluster) -> None:
    cluster.fault("PATCH", PATHS[0], 404, message='namespaces "team" not found')
    with pytest.raises(errors.ServiceError, match='namespaces "team" not found'):
        submitted(cluster)
    assert len(cluster.changes()) == 1


def test_a_field_of_somebody_else_is_not_overwritten(cluster: MemoryCluster) -> None:
    cluster.put(PATHS[1], {**PARTS[0], "data": {"train.py": "theirs"}})
    with pytest.raises(errors.ServiceError, match=r"ConfigMap/llama was refused \(409\).*\.data\.train\.py"):
        submitted(cluster)
    assert cluster.objects[PATHS[1]]["data"] == {"train.py": "theirs"}
    assert PATHS[3] not in cluster.objects
    assert all("force" not in request.query for request in cluster.requests)


def test_what_the_cluster_has_is_found_by_kind_and_name(cluster: MemoryCluster) -> None:
    api = Api(cluster.access())
    assert find(api, JOB) is None
    submitted(cluster)
    assert find(api, JOB) == cluster.objects[PATHS[3]]
    assert find(api, body("Unknown")) is None
    assert find(api, body("ConfigMap", "another")) is None


@pytest.mark.parametrize("status", [401, 403, 422, 410])
def test_a_refusal_to_look_is_an_error_and_not_nothing(cluster: MemoryCluster, status: int) -> None:
    cluster.fault("GET", PATHS[3], status)
    with pytest.raises(errors.ServiceError):
        find(Api(cluster.access()), JOB)


def test_a_namespace_that_is_not_named_is_the_default_one(cluster: MemoryCluster) -> None:
    nameless = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    (made,) = server_side_apply.apply_all(Api(cluster.access()), [nameless])
    assert list(cluster.objects) == ["/api/v1/namespaces/default/configmaps/x"]
    assert made["metadata"]["uid"]
    server_side_apply.apply_all(
        Api(cluster.access()), [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}]
    )
    assert "/api/v1/namespaces/team" in cluster.objects


@pytest.mark.parametrize("status", [400, 403, 404, 409, 422, 500])
def test_every_refusal_of_a_dry_run_is_told_and_nothing_changes(cluster: MemoryCluster, status: int) -> None:
    cluster.fault("PATCH", PATHS[2], status, message="admission webhook\n says  no")
    told = refusals(Api(cluster.access()), [SHARED, *PARTS, body("Widget", version="example.com/v1"), JOB])
    assert told == [
        f"Service/llama: admission webhook says no ({status})",
        "Widget/llama: the cluster does not serve example.com/v1 Widget",
    ]
    assert cluster.objects == {}
    assert all(r.query["dryRun"] == "All" for r in cluster.requests if r.method == "PATCH")


def test_a_dry_run_with_credentials_that_have_run_out_says_so(cluster: MemoryCluster) -> None:
    cluster.fault("PATCH", PATHS[2], 401)
    with pytest.raises(errors.CredentialsRefusedError, match="renew the credentials"):
        refusals(Api(cluster.access()), PARTS)


def test_the_creator_is_the_person_or_the_role_and_never_a_session_that_changes() -> None:
    sso, role = "arn:aws:sts::1:assumed-role/AWSReservedSSO_Dev_1", "arn:aws:sts::1:assumed-role/ci"
    names = {
        "alice@example.com": "alice-example.com",
        f"{sso}/alice": "arn-aws-sts-1-assumed-role-AWSReservedSSO_Dev_1-alice",
        f"{role}/botocore-session-1795000000": "arn-aws-sts-1-assumed-role-ci",
        "arn:aws:iam::1:user/alice": "arn-aws-iam-1-user-alice",
        f"system:serviceaccount:{'a' * 63}:ci": f"{'a' * 60}-ci",
        "": "",
    }
    for name, label in names.items():
        api: Any = SimpleNamespace(review=lambda *_, name=name: {"status": {"userInfo": {"username": name}}})
        assert creator(api) == label


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
EARLIER_PARTS: list[Json] = [
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
    raw, parts = job(kind, SPECS[kind], **{"trainyard.dev/cancelled": "x"}), EARLIER_PARTS
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
        find_kind("pytorchjob"), job("pytorchjob", SPECS["pytorchjob"]), EARLIER_PARTS, name="llama-2"
    )
    pod = new.job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    assert pod["metadata"]["labels"] == {"trainyard.dev/job": "llama-2"}
    assert pod["spec"]["containers"] == template()["spec"]["containers"]
    assert pod["spec"]["volumes"][0]["configMap"] == {"name": "llama-2-files"}
    assert pod["spec"]["volumes"][1] == template()["spec"]["volumes"][1]
    assert new.job["metadata"]["labels"]["team"] == "llama"
    assert new.job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "main"
    train = make_resubmission(
        find_kind("trainjob"), job("trainjob", SPECS["trainjob"]), EARLIER_PARTS, name="llama-2"
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
        with pytest.raises(errors.ConfigError, match="delete"):
            kind.suspension(raw)
        return
    patch = kind.suspension(raw)
    inner = patch["spec"]["runPolicy"] if kind.name == "pytorchjob" else patch["spec"]
    assert inner == {"suspend": True}


@pytest.mark.parametrize(
    "spec", [{}, {"shutdownAfterJobFinishes": True, "clusterSelector": {"ray.io/cluster": "x"}}]
)
def test_a_rayjob_that_kuberay_would_refuse_to_suspend_is_left_alone(spec: Json) -> None:
    with pytest.raises(errors.ConfigError, match="delete"):
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
