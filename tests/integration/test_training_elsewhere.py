"""Training on a cluster or in CodeBuild, as a hosted job of train.yml follows it."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.gateways.kubernetes.memory_cluster import MemoryCluster, memory_cluster, write_kubeconfig
from tests.unit.jobs.state.shapes import condition, ended, pod

from trainyard import training_elsewhere
from trainyard.command import output
from trainyard.commands.notify import Notice, Posted
from trainyard.errors import ServiceTroubleError
from trainyard.gateways.images.codebuild import BuildState, CodeBuild
from trainyard.pipeline import StepRunner
from trainyard.training_elsewhere import TrainingElsewhere

JOB = "gh-4711"
JOBS, PODS = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs", "/api/v1/namespaces/team/pods"
LABELS = {
    "app.kubernetes.io/managed-by": "trainyard",
    "trainyard.dev/job": JOB,
    "trainyard.dev/kind": "pytorchjob",
    "training.kubeflow.org/job-name": JOB,
    "training.kubeflow.org/replica-type": "master",
}
PLAN: dict[str, Any] = {"run_id": JOB, "title": "7", "segment": "1", "most_segments": "20", "thread": ""}
PLAN |= {"config": "configs/smoke.yaml", "overrides": "a.b=1\nc=2", "store": "s3://ml", "region": "us-east-1"}
PLAN |= {"expected": "{}", "job_minutes": 355, "commit": "c" * 40, "deadline": "325m", "resume": "auto"}
PLAN |= {"run_number": "7"}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Notice]:
    """What was posted to Slack; the store has the run, and its proof holds."""
    notices: list[Notice] = []

    def notify(notice: Notice) -> Posted:
        notices.append(notice)
        return Posted(notice, "")

    monkeypatch.setattr(training_elsewhere, "notify", notify)
    monkeypatch.setattr(training_elsewhere, "prove_run", lambda *_, **__: 0)
    monkeypatch.setattr(TrainingElsewhere, "restore_records", lambda _: 0)
    monkeypatch.setattr(training_elsewhere, "POLL_SECONDS", 0.0)
    monkeypatch.setenv("RUNNER_TEMP", str(tmp_path))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    monkeypatch.setenv("TRAINYARD_CODEBUILD_PROJECT", "yard")
    monkeypatch.delenv("TRAINYARD_JOB_STARTED", raising=False)
    return notices


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MemoryCluster]:
    def deploy_job(*_: object, **__: object) -> tuple[dict[str, Any], int]:
        return {"plan": {"namespace": "team", "kind": "pytorchjob"}}, 0

    monkeypatch.setattr(training_elsewhere, "check_cluster", lambda _: ({}, 0))
    monkeypatch.setattr(training_elsewhere, "open_query", lambda *_: None)
    monkeypatch.setattr(output, "print_result", lambda *_, **__: None)
    loaded = SimpleNamespace(config=SimpleNamespace(cluster=None))
    monkeypatch.setattr(training_elsewhere, "load_config", lambda *_: loaded)
    monkeypatch.setattr(training_elsewhere, "deploy_job", deploy_job)
    monkeypatch.setattr(training_elsewhere, "HANDOVER_SECONDS", 355 * 60.0)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with memory_cluster() as there:
        write_kubeconfig(tmp_path / "kubeconfig", there.server, "default")
        yield there


def put_job(cluster: MemoryCluster, state: str) -> None:
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "pytorch", "image": "x"}]}}
    metadata = {"name": JOB, "namespace": "team", "labels": LABELS, "uid": "uid-of-job"}
    spec = {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}}, "runPolicy": {}}
    body = {"metadata": metadata, "spec": spec, "status": {"conditions": [condition(state)]}}
    cluster.put(f"{JOBS}/{JOB}", {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", **body})
    name, codes = f"{JOB}-master-0", {"Succeeded": 0, "Failed": 1}
    raw = ended(codes[state], name=name) if state in codes else pod(name)
    raw["metadata"]["labels"] = LABELS
    cluster.put(f"{PODS}/{name}", raw)


@pytest.mark.parametrize(
    ("state", "code", "events"),
    [
        ("Succeeded", 0, ["started", "succeeded"]),
        ("Failed", 1, ["started", "failed"]),
        ("Running", 75, ["started"]),
        ("gone", 1, ["started", "failed"]),
    ],
)
def test_a_job_on_a_cluster_is_followed_to_its_end_or_left_to_the_next_segment(
    cluster: MemoryCluster, told: list[Notice], tmp_path: Path, state: str, code: int, events: list[str]
) -> None:
    if state != "gone":
        put_job(cluster, state)
    training = training_elsewhere.training_elsewhere({**PLAN, "target": "eks"})
    assert training is not None
    steps = StepRunner()
    assert training.run(steps) == code
    assert [notice.event for notice in told] == events
    outputs = (tmp_path / "output").read_text() if state != "gone" else ""
    assert ("running<<" in outputs) is (state == "Running")
    assert (steps.codes.get("restore") == 0) is (state != "Running")


class Builds(CodeBuild):
    """CodeBuild with one build, which ends at the third poll."""

    def __init__(self, status: str, code: str) -> None:
        self.answers: list[Any] = ["IN_PROGRESS", ServiceTroubleError("503"), status]
        self.code, self.started = code, dict[str, Any]()

    def start(self, project: str, **values: Any) -> str:
        self.started = {"project": project, **values}
        return "yard:1"

    def state(self, build_id: str) -> BuildState:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        exported = {"TRAIN_CODE": self.code} if self.code else {}
        return BuildState(build_id, answer, (), "", "", "https://log", exported)

    def log_tail(self, state: BuildState, *, lines: int = 12) -> list[str]:
        return ["step 1"]


@pytest.mark.parametrize(
    ("status", "trained", "code", "event"),
    [
        ("SUCCEEDED", "0", 0, "succeeded"),
        ("FAILED", "75", 75, "stopped"),
        ("FAILED", "1", 1, "failed"),
        ("TIMED_OUT", "", 1, "failed"),
    ],
)
@pytest.mark.parametrize("segment", ["1", "2"])
def test_a_build_is_started_once_and_followed(
    told: list[Notice],
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    trained: str,
    code: int,
    event: str,
    segment: str,
) -> None:
    builds = Builds(status, trained)
    monkeypatch.setattr(training_elsewhere, "codebuild", lambda _: builds)
    training = training_elsewhere.training_elsewhere({**PLAN, "target": "codebuild", "segment": segment})
    assert training is not None
    assert training.run(StepRunner()) == code
    assert told[-1].event == event
    variables, token = builds.started["variables"], builds.started["token"]
    assert (token, builds.started["source"]) == (f"gh-4711-{segment}-1", {"sourceVersion": "c" * 40})
    allowed = "true" if segment == "1" else "false"
    assert (variables["RUN_ID"], variables["ALLOW_MISSING_CHECKPOINT"]) == (JOB, allowed)
    assert (variables["OVERRIDES"], variables["DEADLINE"]) == ("a.b=1 c=2", "325m")
    assert json.dumps(variables), "texts only"


def test_this_machine_trains_where_the_plan_names_no_other() -> None:
    assert training_elsewhere.training_elsewhere({"target": "gpu-runner"}) is None
    assert training_elsewhere.training_elsewhere({}) is None
