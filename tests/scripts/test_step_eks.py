"""The steps of deploy_eks.yml and watch_eks.yml, against a stand-in of GitHub's API and one of a cluster."""

import base64
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.unit.gateways.kubernetes.memory_cluster import MemoryCluster, memory_cluster, write_kubeconfig
from tests.unit.jobs.state.shapes import condition, ended, pod

from trainyard.command import handler
from trainyard.commands import step_eks
from trainyard.commands.notify import Notice, Posted
from trainyard.config.schema import Config
from trainyard.errors import ServiceError
from trainyard.gateways.kubernetes.api import Api
from trainyard.github.cluster_job import JobDeployment, read_cluster_job
from trainyard.jobs.follow.job_retries import RetryOutcome
from trainyard.jobs.job_reader import JobReader
from trainyard.jobs.job_spec import JobSpec

SHIPPED = Path(__file__).resolve().parents[2] / ".github" / "workflows" / "watch_eks.yml"
JOB = "gh-4711"
NAMESPACE = "team"
JOBS = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
LABELS = {
    "app.kubernetes.io/managed-by": "trainyard",
    "trainyard.dev/job": JOB,
    "trainyard.dev/kind": "pytorchjob",
    "training.kubeflow.org/job-name": JOB,
    "training.kubeflow.org/replica-type": "master",
}
ENDS = {"Succeeded": 0, "Failed": 1}
"""Condition of a job that ended -> exit code of the step that sees it."""


@dataclass
class Deployments:
    """GitHub's API as far as the steps use it."""

    url: str = ""
    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    statuses: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    dispatches: list[dict[str, Any]] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)
    refuses: str = ""
    """Requests whose path has this text are refused."""
    as_text: bool = False
    """Whether GitHub returns a payload as text."""
    poll: str = "on:\n  schedule: []\n"
    """watch_eks.yml on the default branch."""

    def answer(self, method: str, path: str, body: Any, _headers: Mapping[str, str]) -> tuple[int, Any]:
        parts = urlsplit(path).path.removeprefix("/repos/o/r").strip("/").split("/")
        query = parse_qs(urlsplit(path).query)
        if self.refuses and self.refuses in path:
            return 403, {"message": "Resource not accessible by integration"}
        if parts[0] == "contents":
            return 200, {"content": base64.encodebytes(self.poll.encode()).decode()}
        if parts[0] == "actions" and method == "PUT":
            self.switches.append(" ".join(parts[2:]))
            return 200, None
        if parts[0] == "actions":
            self.dispatches.append({"workflow": parts[2], **body})
            return 200, {"html_url": "https://github.invalid/runs/2"}
        if parts[-1] == "statuses":
            found = self.statuses[int(parts[1])]
            if method == "GET":
                return 200, [*reversed(found)][: int(query["per_page"][0])]
            found.append({**body, "created_at": stamp(0)})
            return 201, found[-1]
        if method == "GET":
            assert (query["task"], query["environment"]) == (["trainyard"], ["eks"])
            return 200, list(reversed(self.records.values()))
        assert body["required_contexts"] == [] and body["auto_merge"] is False
        number = len(self.records) + 1
        payload = json.dumps(body["payload"]) if self.as_text else body["payload"]
        self.records[number] = {"id": number, "created_at": stamp(0), "payload": payload, "ref": body["ref"]}
        self.statuses[number] = []
        return 201, self.records[number]

    def states(self, number: int = 1) -> list[str]:
        return [str(status["state"]) for status in self.statuses[number]]


def stamp(age: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - age))


@dataclass
class Workflow:
    """A checkout whose steps run in this process, one after the other."""

    github: Deployments
    cluster: MemoryCluster
    folder: Path
    patch: pytest.MonkeyPatch
    messages: list[Notice]
    """What was posted to Slack."""

    def step(self, *words: str, plan: str = "") -> tuple[int, dict[str, str]]:
        """Run a step as a workflow does; return its exit code and its outputs."""
        output = self.folder / "output"
        output.write_text("")
        self.patch.setenv("TRAINYARD_PLAN", plan)
        code = int(handler.exit_code_of(lambda: step_eks.main(words)))
        return code, outputs_in(output.read_text())

    def run(self, plan: str, *, first: bool) -> dict[str, Any]:
        """Watch and report as deploy_eks.yml does; return `needs` as its last job sees it."""
        code, outputs = self.step("watch", "--timeout", "1s", plan=plan)
        needs = {
            "plan": {"result": "success" if first else "skipped"},
            "send": {"result": "success" if first else "skipped"},
            "watch": {"result": "success" if code == 0 else "failure", "outputs": outputs},
        }
        is_good = code == 0 and outputs["ended"] == "true"
        needs["prove"] = {"result": "success" if is_good else "skipped", "outputs": {}}
        assert self.step("report", "--needs", json.dumps(needs), plan=plan)[0] == 0
        return needs


def outputs_in(text: str) -> dict[str, str]:
    lines, found = iter(text.splitlines()), {}
    for line in lines:
        name, _, delimiter = line.partition("<<")
        found[name] = "\n".join(iter(lambda: next(lines), delimiter))
    return found


@pytest.fixture
def workflow(
    serve_github: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Workflow]:
    github = Deployments()
    known = {"GITHUB_REPOSITORY": "o/r", "GITHUB_TOKEN": "t", "GITHUB_ACTIONS": "true"}
    known |= {
        "GITHUB_API_URL": serve_github(lambda *words: github.answer(*words)),
        "GITHUB_REF_NAME": "main",
        "GITHUB_SHA": "c" * 40,
    }
    known |= {"GITHUB_SERVER_URL": "https://github.invalid", "GITHUB_RUN_ID": "4711"}
    known |= {"GITHUB_RUN_NUMBER": "7", "GITHUB_RUN_ATTEMPT": "1", "GITHUB_EVENT_NAME": "workflow_dispatch"}
    known |= {"GITHUB_OUTPUT": str(tmp_path / "output"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
    known |= {"RUNNER_TEMP": str(tmp_path / "temp"), "KUBECONFIG": str(tmp_path / "kubeconfig")}
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "temp").mkdir()
    messages: list[Notice] = []

    def notify(notice: Notice) -> Posted:
        messages.append(notice)
        return Posted(notice, thread="")

    monkeypatch.setattr(step_eks, "notify", notify)
    with memory_cluster() as cluster:
        write_kubeconfig(tmp_path / "kubeconfig", cluster.server, "default")
        yield Workflow(github, cluster, tmp_path, monkeypatch, messages)


def put_job(cluster: MemoryCluster, state: str) -> None:
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "pytorch", "image": "x"}]}}
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "status": {"conditions": [condition(state)]},
        "metadata": {"name": JOB, "namespace": NAMESPACE, "labels": LABELS, "uid": "uid-of-job"},
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}}, "runPolicy": {}},
    }
    cluster.put(f"{JOBS}/{JOB}", body)
    name = f"{JOB}-master-0"
    raw = ended(ENDS[state], name=name) if state in ENDS else pod(name)
    raw["metadata"]["labels"] = LABELS
    cluster.put(f"{PODS}/{name}", raw)


def plan_of(**values: Any) -> str:
    given = {"job": JOB, "kind": "pytorchjob", "namespace": NAMESPACE, "image": "r/i@sha256:0"}
    given |= {"store": "s3://ml", "cluster": "", "region": "us-east-1", "config": "configs/smoke.yaml"}
    return JobDeployment(**{**given, **values}).to_text()


@pytest.fixture
def sent(workflow: Workflow, monkeypatch: pytest.MonkeyPatch) -> str:
    """The plan of a job that was sent and runs."""
    monkeypatch.setattr(step_eks, "deploy_job", lambda *_, **__: ({"job": JOB}, 0))
    put_job(workflow.cluster, "Running")
    code, outputs = workflow.step("send", plan=plan_of())
    assert code == 0
    return outputs["plan"]


def test_a_job_that_was_sent_is_a_deployment_of_its_commit(workflow: Workflow, sent: str) -> None:
    assert workflow.github.states() == ["pending"]
    assert workflow.github.records[1]["ref"] == "c" * 40
    assert read_cluster_job(sent).deployment == 1
    assert [notice.event for notice in workflow.messages] == ["started"]


def test_a_job_is_sent_although_github_does_not_record_it(
    workflow: Workflow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step_eks, "deploy_job", lambda *_, **__: ({"job": JOB}, 0))
    workflow.github.refuses = "deployments"
    code, outputs = workflow.step("send", plan=plan_of())
    assert (code, read_cluster_job(outputs["plan"]).deployment) == (0, 0)
    assert f"No poll watches {JOB} after this run" in capsys.readouterr().err


@pytest.mark.parametrize(("end", "as_text"), [("Succeeded", False), ("Failed", True), ("gone", False)])
def test_the_end_of_a_job_is_reported_once_by_polls_that_end_green(
    workflow: Workflow, monkeypatch: pytest.MonkeyPatch, end: str, as_text: bool
) -> None:
    """From the first run, which ends with "still running", to the run that a poll dispatches."""
    github = workflow.github
    github.as_text = as_text
    monkeypatch.setattr(step_eks, "deploy_job", lambda *_, **__: ({"job": JOB}, 0))
    monkeypatch.setattr(step_eks, "POLL_SECONDS", 1.0)
    put_job(workflow.cluster, "Running")
    plan = workflow.step("send", plan=plan_of())[1]["plan"]
    needs = workflow.run(plan, first=True)
    assert (needs["watch"]["result"], needs["watch"]["outputs"]["ended"]) == ("success", "false")
    assert (github.states(), github.switches) == (["pending", "in_progress"], ["watch_eks.yml enable"])
    assert "Still running" in (workflow.folder / "summary").read_text()
    assert workflow.step("poll")[0] == 0
    assert (github.dispatches, github.states()[-1]) == ([], "in_progress")

    if end == "gone":
        del workflow.cluster.objects[f"{JOBS}/{JOB}"]
    else:
        put_job(workflow.cluster, end)
    assert workflow.step("poll")[0] == 0
    assert workflow.step("poll")[0] == 0  # a run handles it: nothing is dispatched twice
    [dispatch] = github.dispatches
    assert (dispatch["workflow"], dispatch["ref"]) == ("deploy_eks.yml", "main")
    assert read_cluster_job(dispatch["inputs"]["plan"]) == read_cluster_job(plan)
    assert github.states()[-1] == "pending"

    needs = workflow.run(dispatch["inputs"]["plan"], first=False)
    is_good = end == "Succeeded"
    assert needs["watch"]["outputs"]["exit_code"] == str(ENDS.get(end, 1))
    assert github.states()[-1] == ("success" if is_good else "failure")
    assert [notice.event for notice in workflow.messages] == ["started", "succeeded" if is_good else "failed"]
    assert workflow.step("poll")[0] == 0
    assert github.switches[-1] == "watch_eks.yml disable", "polls cost nothing while no job is open"
    assert len(github.dispatches) == 1


@pytest.mark.parametrize("end", ENDS)
def test_a_short_job_is_reported_by_the_run_that_sent_it(workflow: Workflow, sent: str, end: str) -> None:
    put_job(workflow.cluster, end)
    workflow.run(sent, first=True)
    assert workflow.github.states() == ["pending", "success" if end == "Succeeded" else "failure"]
    assert workflow.github.switches == []
    assert (workflow.folder / "temp" / "logs").is_dir()


@pytest.mark.parametrize(("age", "polled"), [(6 * 3600, False), (7.1 * 3600, True)])
def test_a_job_whose_run_was_lost_is_polled_again(
    workflow: Workflow, sent: str, age: float, polled: bool
) -> None:
    put_job(workflow.cluster, "Succeeded")
    workflow.github.statuses[1][-1]["created_at"] = stamp(age)
    assert workflow.step("poll")[0] == 0
    assert bool(workflow.github.dispatches) is polled


def test_a_job_sent_while_the_polls_are_switched_off_switches_them_on(workflow: Workflow) -> None:
    github, answer = workflow.github, workflow.github.answer

    def send_after_the_switch(method: str, path: str, *more: Any) -> tuple[int, Any]:
        found = answer(method, path, *more)
        if path.endswith("disable"):
            github.records[1] = {"id": 1, "created_at": stamp(0), "payload": json.loads(plan_of())}
            github.statuses[1] = [{"state": "in_progress", "created_at": stamp(0)}]
        return found

    workflow.patch.setattr(github, "answer", send_after_the_switch)
    assert workflow.step("poll")[0] == 0
    assert github.switches == ["watch_eks.yml disable", "watch_eks.yml enable"]


def test_a_cluster_that_does_not_answer_is_red_and_the_other_jobs_are_polled(
    workflow: Workflow, sent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step_eks, "POLL_SECONDS", 1.0)
    put_job(workflow.cluster, "Succeeded")
    away = plan_of(job="gh-2", cluster="away")
    for number, text in ((2, away), (1, sent)):
        workflow.github.records[number] = {"id": number, "created_at": stamp(0), "payload": text}
        workflow.github.statuses[number] = [{"state": "in_progress", "created_at": stamp(0)}]
    real = step_eks.api_of

    def api_of(job: JobDeployment) -> Any:
        if job.cluster == "away":
            raise ServiceError("the cluster away cannot be reached")
        return real(job)

    monkeypatch.setattr(step_eks, "api_of", api_of)
    assert workflow.step("poll")[0] == 4
    assert "gh-2: the cluster away cannot be reached" in capsys.readouterr().err
    assert [each["inputs"]["job_name"] for each in workflow.github.dispatches] == [JOB]
    assert workflow.github.states(2) == ["in_progress"]


def test_a_job_whose_end_no_run_can_read_is_given_up_and_reported(workflow: Workflow, sent: str) -> None:
    needs = {"plan": {"result": "skipped"}, "send": {"result": "skipped"}, "watch": {"result": "failure"}}
    for number in range(1, 6):
        workflow.github.statuses[1] = [{"state": "pending", "created_at": stamp(0)} for _ in range(number)]
        assert workflow.step("report", "--needs", json.dumps(needs), plan=sent)[0] == 0
        assert workflow.github.states()[-1] == ("failure" if number == 5 else "in_progress")
    assert [notice.event for notice in workflow.messages] == ["started", "failed"]


def test_a_cancelled_watch_is_reported_and_its_job_is_polled(workflow: Workflow, sent: str) -> None:
    needs = {"plan": {"result": "success"}, "send": {"result": "success"}, "watch": {"result": "cancelled"}}
    assert workflow.step("report", "--needs", json.dumps(needs), plan=sent)[0] == 0
    assert workflow.messages[-1].event == "failed"  # notify_slack reads in `needs` who cancelled it
    assert workflow.github.states()[-1] == "in_progress"


def test_a_run_that_sent_nothing_reports_its_failure(workflow: Workflow) -> None:
    needs = {"plan": {"result": "failure", "outputs": {"reason": "not ready"}}, "send": {"result": "skipped"}}
    assert workflow.step("report", "--needs", json.dumps(needs))[0] == 0
    [notice] = workflow.messages
    assert (notice.event, notice.run_dir) == ("failed", workflow.folder / "temp" / "records")
    assert notice.needs == needs
    assert workflow.github.records == {}


def test_polls_that_cannot_be_started_are_a_warning_with_the_command(
    workflow: Workflow, sent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    workflow.github.refuses = "enable"
    workflow.run(sent, first=True)
    assert "gh workflow enable watch_eks.yml" in capsys.readouterr().err


def test_polls_without_a_schedule_are_a_warning_with_the_command(
    workflow: Workflow, sent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    workflow.github.poll = SHIPPED.read_text()
    workflow.run(sent, first=True)
    assert "trainyard init github adds it" in capsys.readouterr().err


@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize("state", ["Running", "Failed"])
def test_a_job_that_is_sent_again_has_not_ended(
    workflow: Workflow, monkeypatch: pytest.MonkeyPatch, state: str, is_waiting: bool
) -> None:
    """Nor has one whose retry waits for the back-off: the next poll sends it."""
    put_job(workflow.cluster, state)
    found = JobReader(Api(workflow.cluster.access())).state(NAMESPACE, JOB, "pytorchjob")
    loop = SimpleNamespace(follow_to_end=lambda *_, **__: RetryOutcome(found, "why", is_waiting=is_waiting))
    monkeypatch.setattr(step_eks, "RetryLoop", lambda *_, **__: loop)
    code, outputs = workflow.step("watch", plan=plan_of(auto_retry="2"))
    has_ended = state == "Failed" and not is_waiting
    assert (code, outputs["ended"]) == ((1, "true") if has_ended else (0, "false"))


@pytest.mark.parametrize("text", ["{}", "[]", "x", '{"job": 1}', '{"plan": "run"}'])
def test_a_plan_that_nobody_made_is_refused(workflow: Workflow, text: str) -> None:
    for command in ("send", "watch", "prove"):
        code, outputs = workflow.step(command, plan=text)
        assert code == 2
        assert "is not the plan of a job" in outputs["reason"]


# The plan: inputs and variables as the values with which the cluster is checked and the job planned.

OVERRIDES = 'training.max_steps=50 model.name="my own model"'
CHANGES = ["training.max_steps=50", 'model.name="my own model"']
VARIABLES = {
    "TRAINYARD_EKS_CLUSTER": "gpus",
    "TRAINYARD_EKS_ROLE": "arn:aws:iam::123456789012:role/trainyard-eks",
    "TRAINYARD_EKS_NODES": "3",
    "TRAINYARD_EKS_INSTANCE_TYPE": "p5.48xlarge",
    "TRAINYARD_EKS_ACCEPT": "network",
    "TRAINYARD_STORE": "s3://ml-runs/phase2",
    "TRAINYARD_AWS_REGION": "eu-west-1",
}
RESOLVED = {
    "job": JOB,
    "kind": "rayjob",
    "namespace": "team",
    "image": "r/i@sha256:1",
    "store": "s3://ml-runs/phase2",
}


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({}, {"nodes": "3", "gpus": "", "instance_type": "p5.48xlarge", "auto_retry": "0"}),
        (
            {"num_nodes": "2", "gpu_per_node": "0", "instance_type": "g5.xlarge", "auto_retry": "3"},
            {"nodes": "2", "gpus": "0", "instance_type": "g5.xlarge", "auto_retry": "3"},
        ),
        ({"dry_run": True, "job_name": "mine", "kind": "hyperpod"}, {"nodes": "3"}),
    ],
)
def test_the_plan_holds_what_inputs_and_variables_ask_for_and_what_the_cluster_decided(
    workflow: Workflow, monkeypatch: pytest.MonkeyPatch, inputs: dict[str, Any], expected: dict[str, str]
) -> None:
    requests: list[JobSpec] = []
    stores: set[str | None] = set()

    def check(request: JobSpec, _settings: object) -> tuple[dict[str, Any], int]:
        requests.append(request)
        return {}, 0

    def deploy(config: Config, request: JobSpec, **more: Any) -> tuple[dict[str, Any], int]:
        assert more == {"accept": ("network",), "dry_run": True}
        assert (config.training.max_steps, config.model.name) == (50, "my own model")
        stores.add(config.artifacts.store)
        requests.append(request)
        decided = {"name": JOB, "kind": "rayjob", "namespace": "team", "image": "r/i@sha256:1"}
        return {"plan": decided, "objects": []}, 0

    monkeypatch.setattr(step_eks, "open_query", lambda request, _settings: request)
    monkeypatch.setattr(step_eks, "check_cluster", lambda request: check(request, None))
    monkeypatch.setattr(step_eks, "verdict_lines", lambda _data, width: [])
    monkeypatch.setattr(step_eks, "deploy_job", deploy)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    given = {"config": "configs/smoke.yaml", "overrides": OVERRIDES, "num_nodes": "", "plan": None, **inputs}
    monkeypatch.setenv("INPUTS", json.dumps(given))
    code, outputs = workflow.step("plan")
    assert code == 0
    job = read_cluster_job(outputs["plan"])
    assert {name: getattr(job, name) for name in expected} == expected
    assert job.model_dump(include=set(RESOLVED)) == RESOLVED
    assert list(job.changes) == CHANGES
    checked, planned = requests
    assert replace(checked, image=planned.image) == planned, "the image is looked up with the plan"
    assert (planned.target.cluster, planned.target.region) == ("gpus", "eu-west-1")
    assert (planned.nodes, planned.auto_retry) == (int(job.nodes), int(job.auto_retry))
    assert planned.gpus_per_node == (int(job.gpus) if job.gpus else None)
    assert planned.name == (inputs.get("job_name") or JOB)
    workflow.step("send", "--dry-run", plan=json.dumps(job.model_dump() | {"namespace": "team"}))
    sent = requests[-1]
    assert (sent.namespace, sent.kind, sent.image) == ("team", "rayjob", "r/i@sha256:1")
    assert (sent.nodes, stores) == (planned.nodes, {"s3://ml-runs/phase2"})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"nodes": "many"}, "num_nodes: 'many' is not a whole number above 0"),
        ({"gpus": "-1"}, "gpu_per_node: '-1' is not a whole number from 0"),
        ({"auto_retry": "x"}, "auto_retry: 'x' is not a whole number from 0"),
        ({"kind": "pod"}, "kind: 'pod' is none of auto, "),
    ],
)
def test_an_input_that_cannot_be_used_is_refused(
    workflow: Workflow, value: dict[str, str], message: str
) -> None:
    code, outputs = workflow.step("send", plan=plan_of(**value))
    assert code == 2 and outputs["reason"].startswith(message)


def test_a_cluster_that_is_not_ready_ends_the_plan(
    workflow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_eks, "open_query", lambda request, _settings: request)
    monkeypatch.setattr(step_eks, "check_cluster", lambda _request: ({}, 1))
    monkeypatch.setattr(step_eks, "verdict_lines", lambda _data, width: [])
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("INPUTS", json.dumps({"config": ""}))
    monkeypatch.setenv("TRAINYARD_CONFIG", "configs/none.yaml")
    assert workflow.step("plan")[1]["reason"].startswith("configs/none.yaml")
    monkeypatch.setenv("TRAINYARD_CONFIG", "configs/smoke.yaml")
    code, outputs = workflow.step("plan")
    assert code == 1
    assert "namespace" not in outputs.get("plan", "")


def test_a_repository_that_is_not_set_up_is_refused(
    workflow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INPUTS", json.dumps({"config": "configs/smoke.yaml"}))
    code, outputs = workflow.step("plan")
    assert code == 2
    assert "does not say where to train" in outputs["reason"]
    monkeypatch.delenv("INPUTS")
    assert workflow.step("plan")[0] == 2
