"""Jobs of a cluster as people ask for them, against an API server; and the archive of a failure."""

import hashlib
import json
import tarfile
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

from trainyard.commands import debug_dump
from trainyard.errors import ConfigError

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


TOKEN = "ghp_" + "a1B2" * 9


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "a run"
    (run / "logs").mkdir(parents=True)
    outcome = {"status": "failed", "exit_code": 1, "reason": "the program ended with exit code 1"}
    (run / "run.json").write_text(json.dumps({"run_id": "r1", "recipe": "command", "outcome": outcome}))
    secrets = "{URL: 'pg://u:pw@h', MY_API_KEY: correct-horse}"
    (run / "config.yaml").write_text(f"recipe: command\nprogram: {{environment: {secrets}}}\n")
    log = f"step 1\ntoken {TOKEN}\nOSError: [Errno 28] No space left on device\n"
    (run / "logs" / "node-0.log").write_text("x" * 2_000_000 + "\n" + log)
    return run


def test_a_dump_has_records_ends_of_logs_versions_and_the_cause_and_no_secret(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    file = tmp_path / "dump.tar.gz"
    assert debug_dump.main([str(run), "--output", str(file)]) == 0
    assert capsys.readouterr().out.strip() == str(file)
    texts = read_archive(file)
    assert {"run.json", "config.yaml", "explanation.json", "machine/versions.json"} <= set(texts)
    assert json.loads(texts["explanation.json"])["class"] == "disk-full"
    assert json.loads(texts["machine/environment.json"])["NCCL_DEBUG"] == "WARN"
    assert texts["logs/node-0.log"].startswith("(the first ") and "No space left" in texts["logs/node-0.log"]
    assert not any(TOKEN in text for text in texts.values())
    assert f"token ***{hashlib.sha256(TOKEN.encode()).hexdigest()[:8]}\n" in texts["logs/node-0.log"]
    assert "pg://u:***@h" in texts["config.yaml"] and "MY_API_KEY: ***" in texts["config.yaml"]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run directory"):
        debug_dump.main([str(tmp_path)])
    with pytest.raises(ConfigError, match="is not a run directory"):
        debug_dump.main([str(tmp_path / "none")])


def read_archive(file: Path) -> dict[str, str]:
    with tarfile.open(file) as archive:
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive
        }


def plant_job(cluster: MemoryCluster) -> str:
    """Plant a failed job whose pods hold secrets of no known form, in variables, annotations and logs."""
    raw, pods = failed()
    secret = "correct-horse-battery"
    copy = json.dumps({"env": [{"name": "STUDY_PASSWORD", "value": secret}]})
    applied = {"kubectl.kubernetes.io/last-applied-configuration": copy}
    for each in (raw, *pods):
        each["metadata"].setdefault("annotations", {}).update(applied)
    for each in pods:
        each["spec"]["nodeName"] = "gpu-7"
        each["spec"].setdefault("containers", [{"name": "pytorch"}])[0]["env"] = [
            {"name": "STUDY_PASSWORD", "value": secret},
            {"name": "ANYTHING_ELSE", "value": secret},
            {"name": "NCCL_DEBUG", "value": "INFO"},
            {"name": "TORCH_AUTH_TOKEN", "value": secret},
        ]
    show(cluster, raw, pods)
    lines = (f"token {TOKEN}", f"my {secret}", "Killed")
    for name in cluster.logs:
        cluster.logs[name] = PodLog([*lines])
    cluster.objects["/version"] = {"gitVersion": "v1.33.1"}
    cluster.objects["/api/v1/nodes/gpu-7"] = {
        "metadata": {"name": "gpu-7", "labels": {"node.kubernetes.io/instance-type": "p5.48xlarge"}},
        "status": {"addresses": [{"address": "10.1.2.3"}], "conditions": [{"type": "Ready"}]},
    }
    return secret


def test_a_job_has_its_cluster_pods_logs_and_events_and_no_secret(
    cluster: MemoryCluster, kubeconfig: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = plant_job(cluster)
    monkeypatch.setenv("STUDY_PASSWORD", secret)
    monkeypatch.setenv("ANYTHING_AT_ALL", "of this machine")
    file = tmp_path / "dump.tar.gz"
    place = ["--kubeconfig", kubeconfig]
    assert debug_dump.main(["job", "--output", str(file), *place]) == 0
    texts = read_archive(file)
    assert {"status.json", "events.json", "job.json", "pods.json", "explanation.txt"} <= set(texts)
    assert json.loads(texts["explanation.json"])["class"] == "oom-host"
    facts = json.loads(texts["cluster.json"])
    assert facts["version"]["gitVersion"] == "v1.33.1"
    assert facts["nodes"]["gpu-7"]["labels"] == {"node.kubernetes.io/instance-type": "p5.48xlarge"}
    logs = [text for name, text in texts.items() if name.startswith("logs/")]
    assert logs and all(text for text in logs)
    shown = json.loads(texts["pods.json"])[0]["spec"]["containers"][0]["env"]
    assert [each["value"] for each in shown] == ["(left out)", "(left out)", "INFO", "(left out)"]
    assert not any(hidden in text for text in texts.values() for hidden in (secret, TOKEN, "of this machine"))
    assert json.loads(texts["machine/environment.json"])["ANYTHING_AT_ALL"] == "(left out)"


def test_what_the_cluster_refuses_is_named_and_the_rest_is_there(
    cluster: MemoryCluster, kubeconfig: str, tmp_path: Path
) -> None:
    plant_job(cluster)
    cluster.fault("GET", "/nodes/gpu-7", 403)
    file = tmp_path / "dump.tar.gz"
    assert debug_dump.main(["job", "--output", str(file), "--kubeconfig", kubeconfig]) == 0
    assert "refused" in json.loads(read_archive(file)["cluster.json"])["nodes"]["gpu-7"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("jo", "There is no job jo in team; did you mean job?"),
        ("quite-different", "There is no job quite-different in team; trainyard job ls lists all"),
        ("No_Name", "is not the name of an object in a cluster"),
    ],
)
def test_a_wrong_name_is_neither_a_run_nor_a_job(
    cluster: MemoryCluster, kubeconfig: str, name: str, why: str
) -> None:
    plant_job(cluster)
    with pytest.raises(ConfigError) as error:
        debug_dump.main([name, "--kubeconfig", kubeconfig])
    assert str(error.value).startswith(f"{name} is neither a run's directory nor a job that was found.\n")
    assert why in str(error.value)


def test_without_a_cluster_a_wrong_name_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither a run's directory nor a job(.|\n)*no such kubeconfig"):
        debug_dump.main(["nope", "--kubeconfig", str(tmp_path / "none")])
