"""The script of jobs as people call it, against answers of an API server."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.conftest import Call
from tests.unit.gateways.kubernetes.memory_cluster import (
    MemoryCluster,
    PodLog,
    memory_cluster,
    write_kubeconfig,
)
from tests.unit.jobs.state.shapes import condition, ended, event, job, our_labels, pod, running

Json = dict[str, Any]
JOBS = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs"
JOB = f"{JOBS}/job"
SPACE = "/api/v1/namespaces/team"
OURS = our_labels("job")


def show(cluster: MemoryCluster, raw: Json, pods: list[Json]) -> None:
    """Let this be the job, and these its pods."""
    raw["metadata"]["labels"] = OURS
    cluster.remove(JOB)
    owner = {"uid": cluster.put(JOB, raw)["metadata"]["uid"]}
    for each in pods:
        meta = each["metadata"]
        meta |= {"labels": meta["labels"] | OURS, "ownerReferences": [owner]}
        cluster.put(f"{SPACE}/pods/{meta['name']}", each)
        log = PodLog(["step 41 of pytorch"])
        cluster.logs[meta["name"], "pytorch", False] = log


def put_events(cluster: MemoryCluster, *events: Json) -> None:
    for number, each in enumerate(events):
        cluster.put(f"{SPACE}/events/e{number}", each)


Manage = Callable[..., Any]


@pytest.fixture
def kubeconfig(cluster: MemoryCluster, tmp_path: Path) -> str:
    write_kubeconfig(tmp_path / "kubeconfig", cluster.server)
    return str(tmp_path / "kubeconfig")


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    with memory_cluster() as found:
        yield found


@pytest.fixture
def manage(called: Call, kubeconfig: str) -> Manage:
    return lambda *words, **variables: called("job", *words, "--kubeconfig", kubeconfig, **variables)


def failed() -> tuple[Json, list[Json]]:
    raw = job("pytorchjob", conditions=[condition("Created"), condition("Failed", message="worker failed")])
    raw["metadata"]["annotations"] = {"trainyard.dev/retries": "1"}
    return raw, [pod("job-0"), ended(137, name="job-1", rank=1, reason="OOMKilled", text="step 41\nKilled")]


def test_the_status_of_a_failed_job_is_told_to_people_and_machines(
    manage: Manage, cluster: MemoryCluster
) -> None:
    show(cluster, *failed())
    done = manage("status", "job", COLUMNS="80")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[0] == "job (pytorchjob) in team: Failed"
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80
    record = json.loads(manage("status", "job", "--json").stdout)
    assert record["uid"] == cluster.objects[JOB]["metadata"]["uid"]
    assert (record["status"], record["retries"], record["holds_resources"]) == ("Failed", 1, True)
    assert {key: record["failure"][key] for key in ("class", "rank", "exit_code")} == {
        "class": "oom-host", "rank": 1, "exit_code": 137,
    }  # fmt: skip
    assert record["failure"]["lines"] == ["step 41", "Killed"]


def test_a_job_that_a_quota_keeps_out_has_not_ended(
    called: Call, cluster: MemoryCluster, kubeconfig: str
) -> None:
    quota = (
        'pods "job-1" is forbidden: exceeded quota: gpu, requested: requests.nvidia.com/gpu=8, '
        "used: requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=16"
    )
    refused = event("FailedCreatePod", quota, kind="Warning", involved={"kind": "PyTorchJob", "name": "job"})
    show(cluster, job("pytorchjob", conditions=[condition("Created")]), running(1))
    put_events(cluster, refused)
    done = called("explain", "--job", "job", "--kubeconfig", kubeconfig)
    assert done.stdout.startswith("quota: it has not ended; it waits: "), done.stdout + done.stderr
    assert "fix: wait until other jobs of the namespace end" in done.stdout
    assert "retry: not needed; it has not ended" in done.stdout and "why it ended" not in done.stdout


@pytest.mark.parametrize(("says", "code"), [("Running", 0), ("Succeeded", 0), ("Failed", 1)])
def test_the_exit_code_says_whether_the_job_has_failed(
    says: str, code: int, manage: Manage, cluster: MemoryCluster
) -> None:
    show(cluster, job("pytorchjob", conditions=[condition("Created"), condition(says)]), running())
    assert manage("status", "job").returncode == code


def test_jobs_are_listed_with_one_line_each(manage: Manage, cluster: MemoryCluster) -> None:
    assert "no jobs" in manage("ls").stdout
    show(cluster, *failed())
    assert manage("ls").stdout.splitlines()[1].split()[:4] == ["team", "job", "pytorchjob", "Failed"]
    assert [found["job"] for found in json.loads(manage("ls", "--json").stdout)["jobs"]] == ["job"]


def test_logs_are_printed_and_saved(manage: Manage, cluster: MemoryCluster, tmp_path: Path) -> None:
    show(cluster, *failed())
    assert manage("logs", "job").stdout == "".join(f"job-{n}/pytorch  step 41 of pytorch\n" for n in (0, 1))
    assert manage("logs", "job", "--pod", "job-1", "--tail", "5").stdout.startswith("job-1/pytorch")
    assert manage("logs", "job", "--save", str(tmp_path / "a folder")).returncode == 0
    assert len(list((tmp_path / "a folder").glob("job-*.pytorch.log"))) == 2


def test_events_are_listed(manage: Manage, cluster: MemoryCluster) -> None:
    show(cluster, *failed())
    created = event("SuccessfulCreatePod", "Created pod: job-0")
    put_events(cluster, created, event("X", involved={"name": "other"}))
    found = json.loads(manage("events", "job", "--json").stdout)["events"]
    assert [each["reason"] for each in found] == ["SuccessfulCreatePod"]


def test_a_dry_run_changes_nothing(manage: Manage, cluster: MemoryCluster) -> None:
    show(cluster, *failed())
    files = f"{SPACE}/configmaps/job-files"
    cluster.put(files, {"metadata": {"name": "job-files", "labels": OURS}})
    deleting = manage("delete", "job", "--dry-run")
    assert deleting.stdout == "would delete pytorchjobs/job\nwould delete configmaps/job-files\n"
    show(cluster, job("pytorchjob", conditions=[condition("Running")]), running())
    assert manage("cancel", "job", "--dry-run").stdout == "would suspend pytorchjobs/job\n"
    assert manage("resubmit", "job", "--dry-run").returncode == 2
    show(cluster, job("pytorchjob", conditions=[condition("Failed")]), [])
    cluster.remove(files)
    assert manage("resubmit", "job", "--dry-run").stdout == "would create pytorchjobs/job-2\n"
    assert cluster.changes() == []


def test_a_job_is_cancelled_deleted_and_sent_again(manage: Manage, cluster: MemoryCluster) -> None:
    show(cluster, job("pytorchjob", conditions=[condition("Running")]), running())
    assert manage("cancel", "job").stdout == "suspended pytorchjobs/job\n"
    assert cluster.changes()[0] == ("PATCH", JOB)
    assert cluster.objects[JOB]["spec"]["runPolicy"] == {"suspend": True}
    show(cluster, job("pytorchjob", conditions=[condition("Failed")]), [])
    assert manage("resubmit", "job").stdout == "created pytorchjobs/job-2\n"
    made = cluster.objects[f"{JOBS}/job-2"]
    assert made["metadata"]["labels"]["trainyard.dev/job"] == made["metadata"]["name"] == "job-2"
    show(cluster, *failed())
    done = manage("delete", "job", "--no-logs")
    assert (done.returncode, done.stdout) == (0, "deleted pytorchjobs/job\n")


def test_nothing_is_deleted_while_a_log_cannot_be_saved(
    manage: Manage, cluster: MemoryCluster, tmp_path: Path
) -> None:
    show(cluster, *failed())
    cluster.fault("GET", "/pods/job-0/log", 403)
    done = manage("delete", "job", "--save", str(tmp_path / "logs"))
    assert done.returncode == 1
    assert "not saved: " in done.stderr
    assert "--no-logs" in done.stderr
    assert cluster.changes() == []
    cluster.faults.clear()
    assert manage("delete", "job", "--save", str(tmp_path / "logs")).returncode == 0


def test_a_strangers_job_is_deleted_only_if_that_is_meant(manage: Manage, cluster: MemoryCluster) -> None:
    show(cluster, *failed())
    cluster.objects[JOB]["metadata"]["labels"] = {"team": "b"}
    words = ("delete", "job", "--no-logs", "--kind", "pytorchjob")
    refused = manage(*words)
    assert refused.returncode == 2 and "add --not-ours. Nothing was deleted" in refused.stderr
    assert cluster.changes() == []
    assert manage(*words, "--not-ours").stdout == "deleted pytorchjobs/job\n"


WRONG = [
    (("status",), "needs the name of a job"),
    (("list",), "did you mean 'ls'?"),
    (("ls", "job"), "ls takes no job"),
    (("status", "job", "--tail", "5"), "--tail is for logs"),
    (("logs", "job", "--dry-run"), "--dry-run is for cancel and delete and resubmit"),
    (("status", "job", "--cluster", "x"), "--cluster names a cluster by itself"),
    (("status", "other"), "There is no job other in team"),
    (("status", "job", "--kind", "trainjob"), "There is no job job in team"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_wrong_usage_is_refused_with_what_is_wrong(
    words: tuple[str, ...], said: str, manage: Manage, cluster: MemoryCluster
) -> None:
    show(cluster, *failed())
    done = manage(*words)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_refusal_of_the_cluster_is_told(manage: Manage, cluster: MemoryCluster) -> None:
    show(cluster, *failed())
    cluster.fault("GET", "/pytorchjobs/job", 403)
    assert manage("status", "job", "--kind", "pytorchjob").returncode == 4
