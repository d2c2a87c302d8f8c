"""Jobs are found with all that belongs to them; what may not be read is left out, not taken as absent."""

from typing import Any

import pytest
from tests.unit.gateways.kubernetes.memory_cluster import CUT_BEFORE, MemoryCluster
from tests.unit.jobs.state.shapes import job, our_labels, pod

from trainyard.errors import ConfigError, CredentialsRefusedError, PermissionRefusedError, ServiceError
from trainyard.gateways import bounded_calls
from trainyard.gateways.kubernetes.api import Api
from trainyard.jobs.job_reader import JobReader
from trainyard.jobs.kinds import find_kind

Json = dict[str, Any]
SPACE = "namespaces/team"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_calls, "FIRST_SECONDS", 0.001)


def look(cluster: MemoryCluster) -> JobReader:
    return JobReader(Api(cluster.access()))


def plant(cluster: MemoryCluster, kind: str, name: str = "job", **status: Any) -> Json:
    raw = job(kind, **status)
    raw["metadata"] |= {"name": name, "uid": f"uid-of-{kind}-{name}", "labels": our_labels(name, kind)}
    return cluster.put(find_kind(kind).path("team", name), raw)


def owned(cluster: MemoryCluster, root: str, resource: str, name: str, labels: Json | None = None) -> None:
    meta = {"name": name, "uid": f"uid-of-{name}", "labels": labels or {}}
    cluster.put(f"/apis/{root}/{SPACE}/{resource}/{name}", {"metadata": meta})


def test_of_jobs_of_one_name_the_own_one_is_meant_unless_a_kind_is_named(cluster: MemoryCluster) -> None:
    plant(cluster, "pytorchjob")
    plant(cluster, "rayjob", rayClusterName="job")
    cluster.objects[find_kind("rayjob").path("team", "job")]["metadata"]["labels"] = {"team": "b"}
    assert look(cluster).find_job("team", "job").kind.name == "pytorchjob"
    theirs = look(cluster).find_job("team", "job", "rayjob")
    assert theirs.kind.name == "rayjob" and not theirs.is_ours
    plant(cluster, "trainjob")
    both = "Add what is meant: --kind pytorchjob or --kind trainjob"
    with pytest.raises(ConfigError, match=f"job in team is .* that Trainyard sent. {both}"):
        look(cluster).find_job("team", "job")
    for kind in ("pytorchjob", "trainjob"):
        assert look(cluster).find_job("team", "job", kind).kind.name == kind
        cluster.remove(find_kind(kind).path("team", "job"))
    with pytest.raises(ConfigError, match=r"did not send\. Add what is meant: --kind rayjob"):
        look(cluster).find_job("team", "job")


@pytest.mark.parametrize("status", [403, 410, 422, 429, 500, CUT_BEFORE])
def test_a_refused_kind_is_an_error_only_where_no_other_is_found(cluster: MemoryCluster, status: int) -> None:
    cluster.fault("GET", "/pytorchjobs/job", status)
    with pytest.raises(ServiceError):
        look(cluster).find_job("team", "job")
    plant(cluster, "rayjob")
    assert look(cluster).find_job("team", "job").kind.name == "rayjob"


def test_the_jobs_of_a_namespace_are_listed_without_the_clusters_they_use(cluster: MemoryCluster) -> None:
    plant(cluster, "pytorchjob", "a")
    plant(cluster, "rayjob", "b")
    plant(cluster, "raycluster", "b")
    plant(cluster, "raycluster", "c")
    foreign = job("pytorchjob")
    foreign["metadata"]["labels"] = {"team": "b"}
    cluster.put(find_kind("pytorchjob").path("team", "foreign"), foreign)
    for namespace in ("team", ""):
        told = [(found.kind.name, found.name) for found in look(cluster).jobs(namespace)]
        assert told == [("pytorchjob", "a"), ("rayjob", "b"), ("raycluster", "c")]


@pytest.mark.parametrize("status", [403, 404, 500, CUT_BEFORE])
def test_a_kind_that_cannot_be_listed_is_named_and_the_others_are_listed(
    cluster: MemoryCluster, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    plant(cluster, "pytorchjob", "a")
    plant(cluster, "rayjob", "b")
    cluster.fault("GET", f"{SPACE}/pytorchjobs", status)
    assert [found.name for found in look(cluster).jobs("team")] == ["b"]
    assert "PyTorchJobs are not listed" in caplog.text


@pytest.mark.parametrize("ending", ["/trainjobs/job", "/jobsets/job", "/workloads", "/pods", "/events"])
def test_credentials_that_are_refused_end_every_look(cluster: MemoryCluster, ending: str) -> None:
    plant(cluster, "trainjob")
    cluster.fault("GET", ending, 401)
    with pytest.raises(CredentialsRefusedError):
        look(cluster).observe(look(cluster).find_job("team", "job"))


def test_a_trainjob_is_seen_with_its_jobset_jobs_workload_and_events(cluster: MemoryCluster) -> None:
    uid = plant(cluster, "trainjob")["metadata"]["uid"]
    owned(cluster, "jobset.x-k8s.io/v1alpha2", "jobsets", "job")
    owned(cluster, "batch/v1", "jobs", "job-node-0", {"jobset.sigs.k8s.io/jobset-name": "job"})
    owned(cluster, "batch/v1", "jobs", "other", {"jobset.sigs.k8s.io/jobset-name": "other"})
    owned(cluster, "kueue.x-k8s.io/v1beta1", "workloads", "w", {"kueue.x-k8s.io/job-uid": uid})
    for name, about in [("e1", "job"), ("e2", "job-node-0"), ("e3", "other"), ("e4", "job-worker-9")]:
        event = {"metadata": {"name": name}, "involvedObject": {"name": about}}
        cluster.put(f"/api/v1/{SPACE}/events/{name}", event)
    cluster.put(
        f"/api/v1/{SPACE}/pods/p",
        pod("p", labels={"trainyard.dev/job": "job", "trainyard.dev/kind": "trainjob"}),
    )
    looking = look(cluster)
    seen = looking.observe(looking.find_job("team", "job"))
    assert [raw["kind"] for raw in seen.owned] == ["JobSet", "Job", "Workload"]
    assert sorted(raw["metadata"]["name"] for raw in seen.events) == ["e1", "e2"]
    assert [found.name for found in seen.pods] == ["p"]
    assert sorted(raw["metadata"]["name"] for raw in looking.all_events(seen)) == ["e1", "e2", "e4"]
    assert [raw["metadata"]["name"] for raw in looking.raw_pods(looking.find_job("team", "job"))] == ["p"]


def test_events_of_a_deleted_job_of_the_same_name_are_not_its_own(cluster: MemoryCluster) -> None:
    uid = plant(cluster, "pytorchjob")["metadata"]["uid"]
    for name, of in [("e1", uid), ("e2", "uid-of-the-deleted-one")]:
        about = {"kind": "PyTorchJob", "name": "job", "uid": of}
        cluster.put(f"/api/v1/{SPACE}/events/{name}", {"metadata": {"name": name}, "involvedObject": about})
    looking = look(cluster)
    seen = looking.observe(looking.find_job("team", "job"))
    assert [raw["metadata"]["name"] for raw in seen.events] == ["e1"]


def test_the_workload_of_a_rayjob_may_belong_to_its_cluster(cluster: MemoryCluster) -> None:
    plant(cluster, "rayjob", rayClusterName="job-x")
    owned(cluster, "ray.io/v1", "rayclusters", "job-x")
    owned(cluster, "kueue.x-k8s.io/v1beta1", "workloads", "w", {"kueue.x-k8s.io/job-uid": "uid-of-job-x"})
    looking = look(cluster)
    seen = looking.observe(looking.find_job("team", "job"))
    assert [raw["kind"] for raw in seen.owned] == ["RayCluster", "Workload"]


@pytest.mark.parametrize("status", [403, 404, 500])
@pytest.mark.parametrize(
    "ending", ["/jobsets/job", "/batch/v1/namespaces/team/jobs", "/workloads", "/events"]
)
def test_what_may_not_be_seen_is_left_out(cluster: MemoryCluster, ending: str, status: int) -> None:
    uid = plant(cluster, "trainjob")["metadata"]["uid"]
    owned(cluster, "jobset.x-k8s.io/v1alpha2", "jobsets", "job")
    owned(cluster, "batch/v1", "jobs", "job-node-0", {"jobset.sigs.k8s.io/jobset-name": "job"})
    owned(cluster, "kueue.x-k8s.io/v1beta1", "workloads", "w", {"kueue.x-k8s.io/job-uid": uid})
    cluster.fault("GET", ending, status)
    looking = look(cluster)
    seen = looking.observe(looking.find_job("team", "job"))
    left_out = {"/jobsets/job": "JobSet", "/workloads": "Workload", "/events": ""}.get(ending, "Job")
    assert [raw["kind"] for raw in seen.owned] == [k for k in ("JobSet", "Job", "Workload") if k != left_out]


def test_a_job_that_is_gone_is_seen_as_gone_and_a_refused_one_is_an_error(cluster: MemoryCluster) -> None:
    plant(cluster, "pytorchjob")
    looking = look(cluster)
    found = looking.find_job("team", "job")
    cluster.remove(found.path)
    assert looking.observe(found).job is None
    cluster.fault("GET", "/pytorchjobs/job", 403)
    with pytest.raises(PermissionRefusedError, match="pytorchjobs/job"):
        looking.observe(found)


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_an_empty_name_is_not_the_list_of_jobs(name: str, cluster: MemoryCluster) -> None:
    plant(cluster, "pytorchjob")
    for namespace, job_name in (("team", name), (name, "job")):
        with pytest.raises(ConfigError, match="not the name of an object"):
            look(cluster).find_job(namespace, job_name)


def test_a_slash_in_a_name_does_not_lead_to_another_object(cluster: MemoryCluster) -> None:
    plant(cluster, "pytorchjob", "one")
    for name in ("one/status", "../pytorchjobs/one"):
        with pytest.raises(ConfigError, match="no job"):
            look(cluster).find_job("team", name)


@pytest.mark.parametrize("status", [{}, {"rayClusterName": ""}, {"rayClusterName": None}])
def test_a_ray_job_between_two_clusters_is_seen_without_one(cluster: MemoryCluster, status: Json) -> None:
    plant(cluster, "rayjob", **status)
    looking = look(cluster)
    assert looking.observe(looking.find_job("team", "job")).job is not None
