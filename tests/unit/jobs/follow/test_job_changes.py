"""Jobs are cancelled, deleted and submitted again completely or not at all, whatever the cluster refuses."""

from typing import Any

import pytest
from tests.unit.gateways.kubernetes.memory_cluster import CUT_AFTER, CUT_BEFORE, MemoryCluster
from tests.unit.jobs.state.shapes import condition, our_labels, pod

from trainyard import errors
from trainyard.gateways import bounded_calls
from trainyard.gateways.kubernetes.api import Api
from trainyard.jobs.follow import job_changes
from trainyard.jobs.follow.job_changes import JobEditor
from trainyard.jobs.job_reader import JobReader
from trainyard.jobs.state.reading import name_of

Json = dict[str, Any]
SPACE = "/api/v1/namespaces/team"
JOBS = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs"
JOB, PODS = f"{JOBS}/llama", f"{SPACE}/pods"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta1/namespaces/team/workloads"
CLAIM = f"{SPACE}/persistentvolumeclaims/llama-checkpoints"
PARTS = [f"{SPACE}/configmaps/llama-code", f"{SPACE}/configmaps/llama-config"]
OF_OTHERS = [
    *(f"{SPACE}/configmaps/foreign", f"{SPACE}/configmaps/of-a-rayjob", f"{SPACE}/secrets/llama-token", CLAIM)
]
"""Objects of another job, of one of this name, and those with the job's labels that somebody else made."""
CANCELLED = "trainyard.dev/cancelled"
WRITES: dict[int, type[errors.TrainyardError]] = {
    401: errors.CredentialsRefusedError,
    403: errors.PermissionRefusedError,
    **dict.fromkeys((410, 422, 429, 500), errors.ServiceError),
    CUT_BEFORE: errors.ServiceTroubleError,
}
"""Each answer that ends a change -> its error."""
SAID_ELSEWHERE = (CUT_BEFORE, 401)
"""Answers with the same message for every request."""
READS: dict[int, type[errors.ServiceError]] = {
    401: errors.CredentialsRefusedError,
    **dict.fromkeys((410, 422), errors.ServiceError),
    **dict.fromkeys((429, 500, CUT_BEFORE), errors.ServiceTroubleError),
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_changes, "_PAUSE", 0.01)
    monkeypatch.setattr(job_changes, "_SEEN_SECONDS", 0.3)
    monkeypatch.setattr(bounded_calls, "FIRST_SECONDS", 0.001)


def job_body(state: str = "Running", *, ours: bool = True, uid: str = "") -> Json:
    template = {
        "metadata": {"labels": our_labels()},
        "spec": {"containers": [{"name": "pytorch", "image": "x"}]},
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": "llama",
            "namespace": "team",
            "uid": uid,
            "labels": our_labels() if ours else {},
        },
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}}, "runPolicy": {}},
        "status": {"conditions": [condition(state)]},
    }


def plant(cluster: MemoryCluster, state: str = "Running", *, running: bool = True, ours: bool = True) -> None:
    """Store a job, the pod that its operator made, and the objects that we made for it."""
    made = cluster.put(JOB, job_body(state, ours=ours))
    owner = {"metadata": {"ownerReferences": [{"uid": made["metadata"]["uid"]}]}}
    if running:
        raw = pod("llama-master-0", labels={**our_labels(), "training.kubeflow.org/job-name": "llama"})
        raw["metadata"] |= owner["metadata"]
        cluster.put(f"{PODS}/llama-master-0", raw)
    kinds = {
        "configmaps": "ConfigMap",
        "secrets": "Secret",
        "persistentvolumeclaims": "PersistentVolumeClaim",
    }
    for path in (*PARTS, *OF_OTHERS[2:]):
        resource, _, name = path.removeprefix(f"{SPACE}/").partition("/")
        body = {"apiVersion": "v1", "kind": kinds[resource], "data": {"secret": "hunter2"}}
        cluster.put(path, {**body, "metadata": {"name": name, "namespace": "team", "labels": our_labels()}})
    of_others = (our_labels("other"), our_labels(kind="rayjob"))
    for path, given in zip(OF_OTHERS, of_others, strict=False):
        cluster.put(path, {"metadata": {"name": path.rpartition("/")[2], "labels": given}})


def hold(cluster: MemoryCluster, *names: str) -> None:
    """Store workloads of Kueue for the job."""
    uid = cluster.objects[JOB]["metadata"]["uid"]
    for name in names:
        meta = {"name": name, "labels": {"kueue.x-k8s.io/job-uid": uid}}
        body = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload", "metadata": meta}
        cluster.put(f"{WORKLOADS}/{name}", {**body, "spec": {"active": True}})


def changing(cluster: MemoryCluster) -> JobEditor:
    """An editor whose time passes only while it waits."""
    look, waited = JobReader(Api(cluster.access())), [0.0]
    job = look.find_job("team", "llama", "pytorchjob")
    return JobEditor(look, job, clock=lambda: sum(waited), wait=waited.append)


def notes(cluster: MemoryCluster) -> Json:
    return dict(cluster.objects[JOB]["metadata"].get("annotations") or {})


def is_active(cluster: MemoryCluster, name: str) -> bool:
    return bool(cluster.objects[f"{WORKLOADS}/{name}"]["spec"]["active"])


def delete(cluster: MemoryCluster, *, seconds: float = 5.0) -> list[str]:
    return changing(cluster).delete(seconds=seconds)


# Cancel and stop.


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("call", ["cancel", "stop"])
def test_a_job_is_suspended_or_taken_from_its_queue_and_only_a_cancelled_one_says_when(
    cluster: MemoryCluster, call: str, queued: bool
) -> None:
    """Kueue suspends a job that it has queued. One that is stopped to be sent again is not cancelled."""
    plant(cluster)
    hold(cluster, *(["one", "two"] if queued else []))
    told = (
        ["deactivate workloads/one", "deactivate workloads/two"] if queued else ["suspend pytorchjobs/llama"]
    )
    change = changing(cluster)
    assert change.cancel(dry_run=True) == told and cluster.changes() == []
    assert getattr(change, call)() == told
    assert cluster.objects[JOB]["spec"]["runPolicy"] == ({} if queued else {"suspend": True})
    assert not queued or not (is_active(cluster, "one") or is_active(cluster, "two"))
    assert notes(cluster).get(CANCELLED, "").endswith("Z") is (call == "cancel")


@pytest.mark.parametrize("state", ["Succeeded", "Failed"])
def test_a_job_that_has_ended_cannot_be_cancelled(cluster: MemoryCluster, state: str) -> None:
    plant(cluster, state, running=False)
    with pytest.raises(errors.ConfigError, match=f"llama has ended already: {state}"):
        changing(cluster).cancel()
    assert cluster.changes() == []


@pytest.mark.parametrize("status", [*WRITES, 404, 409])
@pytest.mark.parametrize("call", ["cancel", "stop"])
def test_a_suspension_that_is_refused_names_the_job(cluster: MemoryCluster, call: str, status: int) -> None:
    plant(cluster)
    cluster.fault("PATCH", "/pytorchjobs/llama", status)
    with pytest.raises(WRITES.get(status, errors.ServiceError)) as caught:
        getattr(changing(cluster), call)()
    assert status in SAID_ELSEWHERE or str(caught.value) == f"llama cannot be changed ({status}): planted"
    assert notes(cluster) == {}
    assert cluster.objects[JOB]["spec"]["runPolicy"] == {}


@pytest.mark.parametrize("status", [status for status in (*WRITES, 404, 409) if status > 0])
def test_a_job_whose_workload_runs_is_not_recorded_as_cancelled(cluster: MemoryCluster, status: int) -> None:
    plant(cluster)
    hold(cluster, "one", "two")
    cluster.fault("PATCH", "/workloads/one", status)
    told = "renew the credentials" if status == 401 else rf"one cannot be changed \({status}\)"
    with pytest.raises(WRITES.get(status, errors.ServiceError), match=told):
        changing(cluster).cancel()
    assert is_active(cluster, "one") and is_active(cluster, "two")
    assert notes(cluster) == {}


@pytest.mark.parametrize(("fails", "status"), [("one", CUT_AFTER), ("two", 403)])
def test_a_job_that_was_stopped_in_part_is_cancelled_by_the_next_call(
    cluster: MemoryCluster, fails: str, status: int
) -> None:
    """Until then it has failed as cancelled, so that no watcher sends it again."""
    plant(cluster)
    hold(cluster, "one", "two")
    cluster.fault("PATCH", f"/workloads/{fails}", status)
    with pytest.raises(errors.ServiceError):
        changing(cluster).cancel()
    assert not is_active(cluster, "one")
    cluster.objects[JOB]["status"] = {"conditions": [condition("Suspended")]}
    look = JobReader(Api(cluster.access()))
    failure = look.state("team", "llama", "pytorchjob").failure
    assert failure is not None and failure.failure_class == "cancelled" and not failure.retryable
    cluster.faults.clear()
    changing(cluster).cancel()
    assert not is_active(cluster, "two") and CANCELLED in notes(cluster)


# Delete.


def test_a_job_goes_with_the_parts_that_were_made_for_it_and_nothing_else(cluster: MemoryCluster) -> None:
    plant(cluster)
    told = changing(cluster).delete(seconds=1.0, dry_run=True)
    assert cluster.changes() == []
    assert delete(cluster) == told
    parts = [f"delete {path.removeprefix(f'{SPACE}/')}" for path in PARTS]
    assert sorted(told) == sorted(["delete pytorchjobs/llama", *parts])
    assert sorted(cluster.objects) == sorted(OF_OTHERS)


def test_what_others_labelled_for_a_foreign_job_of_the_name_stays(cluster: MemoryCluster) -> None:
    plant(cluster, ours=False)
    assert delete(cluster) == ["delete pytorchjobs/llama"]
    assert set(PARTS) < set(cluster.objects)


def test_a_job_that_was_made_anew_meanwhile_is_left_alone(cluster: MemoryCluster) -> None:
    plant(cluster)
    change = changing(cluster)
    cluster.remove(JOB)
    cluster.put(JOB, job_body(uid="another"))
    with pytest.raises(errors.ServiceError, match=r"pytorchjobs/llama cannot be deleted \(409\)"):
        change.delete(seconds=1.0)
    assert {JOB, *PARTS} < set(cluster.objects)


@pytest.mark.parametrize("status", WRITES)
def test_nothing_is_deleted_where_the_job_may_not_be(cluster: MemoryCluster, status: int) -> None:
    plant(cluster)
    before = set(cluster.objects)
    cluster.fault("DELETE", "/pytorchjobs/llama", status)
    with pytest.raises(WRITES[status]) as caught:
        delete(cluster)
    assert (
        status in SAID_ELSEWHERE
        or str(caught.value) == f"pytorchjobs/llama cannot be deleted ({status}): planted"
    )
    assert set(cluster.objects) == before


@pytest.mark.parametrize("status", [403, 409, CUT_BEFORE])
def test_one_part_that_is_refused_keeps_no_other(cluster: MemoryCluster, status: int) -> None:
    plant(cluster)
    path = PARTS[0]
    cluster.fault("DELETE", path, status)
    with pytest.raises(WRITES.get(status, errors.ServiceError)) as caught:
        delete(cluster)
    assert status < 0 or path.removeprefix(f"{SPACE}/") in str(caught.value)
    assert sorted(cluster.objects) == sorted([path, *OF_OTHERS])


@pytest.mark.parametrize("status", [CUT_BEFORE, CUT_AFTER])
@pytest.mark.parametrize("path", [JOB, *PARTS])
def test_a_deletion_whose_answer_is_lost_goes_on(cluster: MemoryCluster, path: str, status: int) -> None:
    plant(cluster)
    cluster.fault("DELETE", path, status, times=1)
    delete(cluster)
    assert sorted(cluster.objects) == sorted(OF_OTHERS)


def test_what_is_left_after_the_time_is_named(cluster: MemoryCluster) -> None:
    plant(cluster)
    cluster.objects[f"{PODS}/llama-master-0"]["metadata"]["finalizers"] = ["kubelet"]
    with pytest.raises(errors.WaitTimeoutError, match="after 0 seconds this remains: pods/llama-master-0"):
        delete(cluster, seconds=0.1)


def test_parts_that_may_not_be_seen_are_not_ours(cluster: MemoryCluster) -> None:
    plant(cluster)
    cluster.fault("GET", f"{SPACE}/configmaps", 403)
    assert delete(cluster) == ["delete pytorchjobs/llama"]
    assert JOB not in cluster.objects and PARTS[0] in cluster.objects


@pytest.mark.parametrize("status", READS)
def test_nothing_is_deleted_where_the_parts_are_not_known(cluster: MemoryCluster, status: int) -> None:
    plant(cluster)
    cluster.fault("GET", f"{SPACE}/configmaps", status)
    with pytest.raises(READS[status]):
        delete(cluster)
    assert cluster.changes() == []


# Submit again.


def test_a_job_is_submitted_anew_with_its_parts_which_it_owns(cluster: MemoryCluster) -> None:
    plant(cluster, "Failed", running=False)
    change = changing(cluster)
    planned = change.resubmission()
    change.create(planned)
    assert [name_of(body) for body in planned.all] == ["llama-2-code", "llama-2-config", "llama-2"]
    new = cluster.objects[f"{JOBS}/llama-2"]
    assert new["metadata"]["annotations"]["trainyard.dev/resubmitted-from"] == "llama"
    assert "status" not in new
    for part in ("llama-2-code", "llama-2-config"):
        found = cluster.objects[f"{SPACE}/configmaps/{part}"]
        assert [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == [new["metadata"]["uid"]]
        assert found["metadata"]["labels"]["trainyard.dev/job"] == "llama-2"
    assert changing(cluster).next_name() == "llama-3"


@pytest.mark.parametrize(("state", "running"), [("Running", True), ("Failed", True), ("Created", False)])
def test_a_job_that_may_write_is_not_resubmitted(cluster: MemoryCluster, state: str, running: bool) -> None:
    plant(cluster, state, running=running)
    with pytest.raises(errors.ConfigError, match="delete it"):
        changing(cluster).resubmission()


@pytest.mark.parametrize(("state", "ended"), [("Running", False), ("Created", False), ("Failed", True)])
def test_a_job_whose_successor_may_still_write_is_not_submitted_anew(
    cluster: MemoryCluster, state: str, ended: bool
) -> None:
    """Both would write to the run directory of the first job."""
    plant(cluster, "Failed", running=False)
    change = changing(cluster)
    change.create(change.resubmission())
    cluster.objects[NEW[2]]["status"] = job_body(state)["status"]
    cluster.put(
        f"{JOBS}/llama-3", {**job_body("Running"), "metadata": {"name": "llama-3"}}
    )  # somebody else's job
    if ended:
        assert changing(cluster).resubmission().job["metadata"]["name"] == "llama-4"
    else:
        with pytest.raises(errors.ConfigError, match=r"llama-2 is .*; cancel or delete it before the job"):
            changing(cluster).resubmission()


NEW = [f"{SPACE}/configmaps/llama-2-code", f"{SPACE}/configmaps/llama-2-config", f"{JOBS}/llama-2"]


def planned(cluster: MemoryCluster) -> tuple[JobEditor, Any]:
    plant(cluster, "Failed", running=False)
    change = changing(cluster)
    return change, change.resubmission()


def assert_complete(cluster: MemoryCluster) -> None:
    """The new job exists once, and owns its parts."""
    assert {*NEW, f"{JOBS}/llama-3"} & set(cluster.objects) == set(NEW)
    uid = cluster.objects[NEW[2]]["metadata"]["uid"]
    assert all(cluster.objects[p]["metadata"]["ownerReferences"][0]["uid"] == uid for p in NEW[:2])


@pytest.mark.parametrize("status", [CUT_BEFORE, CUT_AFTER])
def test_a_creation_whose_answer_is_lost_is_tried_once_more(cluster: MemoryCluster, status: int) -> None:
    change, new = planned(cluster)
    cluster.fault("POST", JOBS, status, times=1)
    change.create(new)
    assert_complete(cluster)


def test_a_job_of_others_with_the_name_is_left_alone(cluster: MemoryCluster) -> None:
    change, new = planned(cluster)
    theirs = cluster.put(NEW[2], {"metadata": {"name": "llama-2"}})
    for status in (None, CUT_BEFORE):
        if status:
            cluster.fault("POST", JOBS, status, times=1)
        with pytest.raises(errors.RunConflictError, match="does not follow llama; delete one of them"):
            change.create(new)
    assert cluster.objects[NEW[2]] == theirs


def test_a_webhook_that_has_not_seen_a_part_yet_is_asked_again(cluster: MemoryCluster) -> None:
    change, new = planned(cluster)
    said = "admission webhook denied: TrainingRuntime must be created before the TrainJob"
    cluster.fault("POST", "/pytorchjobs", 403, times=3, message=said)
    change.create(new)
    assert_complete(cluster)
    cluster.remove(NEW[2])
    cluster.fault("POST", "/pytorchjobs", 403, message=said)
    with pytest.raises(errors.PermissionRefusedError, match="PyTorchJob/llama-2 cannot be created"):
        change.create(new)
