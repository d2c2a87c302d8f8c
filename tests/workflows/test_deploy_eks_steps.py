"""The steps of deploy_eks.yml in order: GitHub's expressions, the steps' own bash, the scripts' own parsers.

Each `run` is run by bash with the variables that GitHub would give it. A stand-in for Python records the
words that reach a script, and the script's own parser has to take them. What a script would have answered is
given by the test, and goes to the later jobs as GitHub hands it on.
"""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.unit.gateways.kubernetes.memory_cluster import MemoryCluster, memory_cluster
from tests.unit.jobs.state.shapes import condition, ended, pod
from tests.workflows.conftest import ROOT, Expressions, Shipped, read

JOB = "gh-4711-1"
OVERRIDES = 'training.max_steps=50 model.name="my own model" data.train_path=/shared/a.txt'
WORDS = ["training.max_steps=50", 'model.name="my own model"', "data.train_path=/shared/a.txt"]
INPUTS = {
    "config": "configs/smoke.yaml",
    "overrides": OVERRIDES,
    "num_nodes": "2",
    "gpu_per_node": "0",
    "instance_type": "",
    "kind": "auto",
    "job_name": "",
    "image": "",
    "dry_run": False,
    "takes_up": "",
}
VARIABLES = {
    "TRAINYARD_EKS_CLUSTER": "gpus",
    "TRAINYARD_EKS_ROLE": "arn:aws:iam::123456789012:role/trainyard-github",
    "TRAINYARD_EKS_INSTANCE_TYPE": "p5.48xlarge",
    "TRAINYARD_STORE": "s3://ml-runs/phase2",
}
PLANNED = {"job": JOB, "kind": "pytorchjob", "namespace": "team", "image": "r/i@sha256:0", "store": "s3://ml"}
TOLD: dict[str, dict[str, str]] = {
    "plan_run": {
        "config": "configs/smoke.yaml",
        "overrides": "\n".join(WORDS),
        "store": "s3://ml-runs/phase2",
    }
    | {"run_id": JOB},
    "deploy_training_job --dry-run": PLANNED,
    "manage_training_job status": {"ended": "true", "exit_code": "0"},
    "notify_slack": {"slack_thread": "C1:1.1"},
    "continue_watch": {"dispatched": "true"},
    "prove_run": {"proven": "true"},
}
"""What each script writes as outputs of its step."""


@dataclass
class Flow:
    """One workflow run: which scripts are called with which words, job after job."""

    shipped: Shipped
    expressions: Expressions
    folder: Path
    inputs: dict[str, Any]
    told: dict[str, dict[str, str]]
    lost: tuple[str, ...] = ()
    """Jobs whose runner is lost: they end without outputs."""
    needs: dict[str, Any] = field(default_factory=dict)
    calls: list[tuple[str, str, list[str]]] = field(default_factory=list)
    """Job, script, words."""

    def run(self) -> list[str]:
        """Run every job whose condition holds; their names."""
        ran = []
        for name, job in self.shipped.jobs.items():
            needed = job.get("needs", [])
            names = [needed] if isinstance(needed, str) else needed
            if all(self.needs[each]["result"] == "success" for each in names) or "(" in job.get("if", ""):
                context = self.context({})
                runs = self.expressions.holds(job.get("if", "true"), status=self.status(names), **context)
            else:
                runs = False
            if runs:
                ran.append(name)
            outputs = self.job(name, job) if runs else {}
            result = "failure" if name in self.lost else "success" if runs else "skipped"
            self.needs[name] = {"result": result, "outputs": outputs}
        return ran

    def status(self, names: list[str]) -> str:
        return "failure" if any(self.needs[name]["result"] == "failure" for name in names) else "success"

    def context(self, steps: dict[str, Any]) -> dict[str, Any]:
        github = {"run_id": "4711", "run_number": "7", "run_attempt": "1", "token": "t", "job": "j"}
        return {
            "inputs": self.inputs,
            "vars": VARIABLES,
            "needs": self.needs,
            "steps": steps,
            "secrets": {},
            "github": github,
            "runner": {"temp": str(self.folder)},
        }

    def job(self, name: str, job: dict[str, Any]) -> dict[str, str]:
        if name in self.lost:
            return {}
        steps: dict[str, Any] = {
            step["id"]: {"outputs": {}, "outcome": "skipped"} for step in job["steps"] if "id" in step
        }
        for step in job["steps"]:
            if "run" in step and self.expressions.holds(step.get("if", "true"), **self.context(steps)):
                given = {**job.get("env", {}), **step.get("env", {})}
                found = self.step(name, step["run"], self.evaluated(given, steps))
                if "id" in step:
                    steps[step["id"]] = {"outputs": found, "outcome": "success"}
        return self.evaluated(job.get("outputs", {}), steps)

    def evaluated(self, texts: dict[str, str], steps: dict[str, Any]) -> dict[str, str]:
        found = {}
        for name, text in texts.items():
            value = self.expressions.value(text, **self.context(steps)) if "${{" in text else text
            found[name] = "" if value is None else str(value)
        return found

    def step(self, job: str, text: str, variables: dict[str, str]) -> dict[str, str]:
        words = self.folder / "words"
        given = {**os.environ, **variables, "CALL": str(words), "RUNNER_TEMP": str(self.folder)}
        given["PATH"] = f"{self.folder / '.venv' / 'bin'}:{os.environ['PATH']}"
        line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
        subprocess.run(line, cwd=self.folder, env=given, check=True, timeout=60, capture_output=True)
        script, *rest = words.read_text().split("\0")[:-1]
        name = Path(script).stem
        self.calls.append((job, name, rest))
        keys = (f"{name} --dry-run" if "--dry-run" in rest else "", f"{name} {rest[0]}", name)
        return next((self.told[key] for key in keys if key in self.told), {})

    def words(self, job: str, script: str) -> list[str]:
        return next(words for name, called, words in self.calls if (name, called) == (job, script))


Started = Callable[..., Flow]


@pytest.fixture
def flow(expressions: Expressions, tmp_path: Path) -> Started:
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "python3"):
        (programs / name).write_text('#!/bin/bash\nprintf "%s\\0" "$@" > "$CALL"\n')
        (programs / name).chmod(0o755)
    shipped = read(ROOT / ".github" / "workflows" / "deploy_eks.yml")

    def start(
        told: dict[str, dict[str, str]] | None = None, lost: tuple[str, ...] = (), **inputs: Any
    ) -> Flow:
        found = {**TOLD, **(told or {})}
        return Flow(shipped, expressions, tmp_path, {**INPUTS, **inputs}, found, lost)

    return start


def parsed(script: str, words: list[str]) -> Any:
    """What the script's own parser makes of the words; it ends with SystemExit where it refuses them."""
    module = importlib.import_module(f"trainyard.commands.{script}")
    return module.parse_args(words)


WHOLE = ["preflight", "plan", "submit", "watch", "collect", "publish", "report"]


@pytest.mark.parametrize(
    ("told", "lost", "inputs", "ran"),
    [
        ({}, (), {}, WHOLE),
        ({}, (), {"dry_run": True}, ["preflight", "plan"]),
        (
            {},
            ("watch",),
            {},
            ["preflight", "plan", "submit", "watch", "watch_again", "collect", "publish", "report"],
        ),
        (
            {},
            ("watch", "watch_again"),
            {},
            ["preflight", "plan", "submit", "watch", "watch_again", "continue"],
        ),
        (
            {"manage_training_job status": {"ended": "false"}},
            (),
            {},
            ["preflight", "plan", "submit", "watch", "watch_again", "continue"],
        ),
        (
            {},
            (),
            {"takes_up": json.dumps({**PLANNED, "thread": "C1:1.1", "watch": 3})},
            ["watch", "collect", "publish", "report"],
        ),
    ],
    ids=["whole", "dry run", "lost runner", "two lost runners", "time limit", "next workflow run"],
)
def test_the_jobs_run_in_order_and_every_script_takes_its_words(
    flow: Started, told: Any, lost: tuple[str, ...], inputs: dict[str, Any], ran: list[str]
) -> None:
    found = flow(told, lost, **inputs)
    assert found.run() == ran
    for _job, script, words in found.calls:
        parsed(script, words)
    sends = [words for _, script, words in found.calls if script == "deploy_training_job"]
    assert sum("--dry-run" not in words for words in sends) == ("submit" in ran)
    assert not any(word in words for _, _, words in found.calls for word in ("cancel", "delete", "resubmit"))


def test_overrides_reach_every_script_as_they_were_meant(flow: Started) -> None:
    found = flow()
    found.run()
    assert parsed("plan_run", found.words("preflight", "plan_run")).overrides == OVERRIDES
    for job, script in (
        ("preflight", "manage_cluster"),
        ("plan", "deploy_training_job"),
        ("submit", "deploy_training_job"),
    ):
        sets = [word.removeprefix("--set=") for word in found.words(job, script) if word.startswith("--set=")]
        assert sets == WORDS, job
    empty = flow(told={"plan_run": {**TOLD["plan_run"], "overrides": ""}}, overrides="")
    empty.run()
    assert [word for word in empty.words("submit", "deploy_training_job") if word.startswith("--set=")] == []


def test_what_is_watched_collected_and_published_is_the_job_that_was_planned(flow: Started) -> None:
    found = flow()
    found.run()
    for job in ("watch", "collect"):
        args = parsed("manage_training_job", found.words(job, "manage_training_job"))
        assert (args.job, args.namespace, args.kind, args.cluster) == (JOB, "team", "pytorchjob", "gpus")
    assert parsed("prove_run", found.words("publish", "prove_run")).run_dir.name == JOB
    assert found.words("report", "notify_slack")[0] == "succeeded"
    assert "C1:1.1" in found.words("report", "notify_slack")


# A watch that loses its runner, with the real script and an API server.

JOBS = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs"
PODS = "/api/v1/namespaces/team/pods"
LABELS = {
    "app.kubernetes.io/managed-by": "trainyard",
    "trainyard.dev/job": JOB,
    "trainyard.dev/kind": "pytorchjob",
    "training.kubeflow.org/job-name": JOB,
    "training.kubeflow.org/replica-type": "master",
}


@pytest.fixture
def cluster() -> Iterator[MemoryCluster]:
    with memory_cluster() as found:
        yield found


def put_job(cluster: MemoryCluster, state: str) -> None:
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "pytorch", "image": "x"}]}}
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "status": {"conditions": [condition(state)]},
        "metadata": {"name": JOB, "namespace": "team", "labels": LABELS, "uid": "uid-of-job"},
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}}, "runPolicy": {}},
    }
    cluster.put(f"{JOBS}/{JOB}", body)
    name = f"{JOB}-master-0"
    raw = ended(0, name=name) if state == "Succeeded" else pod(name)
    raw["metadata"]["labels"] = LABELS
    cluster.put(f"{PODS}/{name}", raw)


@pytest.mark.slow
def test_a_watch_that_loses_its_runner_is_taken_up_without_touching_the_job(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    shipped = read(ROOT / ".github" / "workflows" / "deploy_eks.yml")
    text = {
        name: next(step["run"] for step in shipped.jobs[name]["steps"] if step.get("id") in ("watch", "end"))
        for name in ("watch", "watch_again", "collect")
    }
    house = a_house(tmp_path, cluster)
    put_job(cluster, "Running")
    lost, outputs = begun(house, text["watch"])
    deadline = time.monotonic() + 120
    while not any("watch=" in str(request.query) or "watch" in request.query for request in cluster.requests):
        assert time.monotonic() < deadline and lost.poll() is None, lost.communicate()
        time.sleep(0.05)
    os.killpg(lost.pid, signal.SIGKILL)
    lost.communicate(timeout=20)
    assert not re.search(r"^ended(?:=|<<\w+\n)true$", outputs.read_text(), re.MULTILINE)
    put_job(cluster, "Succeeded")
    for name in ("watch_again", "collect"):
        again, outputs = begun(house, text[name])
        said, errors = again.communicate(timeout=240)
        assert again.returncode == 0, (said, errors)
        assert re.search(r"^exit_code(?:=|<<\w+\n)0$", outputs.read_text(), re.MULTILINE)
    assert cluster.changes() == []


def a_house(folder: Path, cluster: MemoryCluster) -> Path:
    """A checkout whose Python is ours, and asks the API server where the step names a cluster of EKS."""
    house = folder / "house"
    (house / ".venv" / "bin").mkdir(parents=True)
    for name in ("scripts", "src", "configs"):
        (house / name).symlink_to(ROOT / name)
    access = cluster.access()
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "team"}}],
        "clusters": [{"name": "here", "cluster": {"server": access.server}}],
        "users": [{"name": "me", "user": {"token": "none"}}],
    }
    (house / "kubeconfig").write_text(json.dumps(document))
    stand_in = house / ".venv" / "bin" / "python"
    stand_in.write_text(
        '#!/bin/bash\nwords=("$@")\n'
        'for n in "${!words[@]}"; do [ "${words[$n]}" = --cluster ] && words[$n]=--kubeconfig && '
        f"words[$((n + 1))]='{house / 'kubeconfig'}'; done\n"
        f"exec '{sys.executable}' \"${{words[@]}}\"\n"
    )
    stand_in.chmod(0o755)
    return house


def begun(house: Path, text: str) -> tuple["subprocess.Popen[str]", Path]:
    """A step that runs, as GitHub's bash runs it, and the file of its outputs."""
    outputs = house / f"outputs-{time.monotonic_ns()}"
    outputs.touch()
    given = {
        "PATH": os.environ["PATH"],
        "HOME": str(house),
        "GITHUB_OUTPUT": str(outputs),
        "CLUSTER": "gpus",
        "GITHUB_ACTIONS": "true",
        "JOB": JOB,
        "KIND": "pytorchjob",
        "NAMESPACE": "team",
        "TIMEOUT": "200s",
        "RUNNER_TEMP": str(house),
    }
    line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
    process = subprocess.Popen(
        line, cwd=house, env=given, text=True, start_new_session=True, stdout=-1, stderr=-1
    )
    return process, outputs


@pytest.mark.parametrize("named", ["", "network", " network  stored "])
def test_parts_of_the_proof_that_the_repository_accepts_reach_both_plans(
    flow: Started, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VARIABLES, "TRAINYARD_EKS_ACCEPT", named)
    found = flow()
    found.run()
    for job in ("plan", "submit"):
        assert parsed("deploy_training_job", found.words(job, "deploy_training_job")).accept == named.split()


def test_the_last_watch_names_the_cluster(flow: Started) -> None:
    found = flow(lost=("watch", "watch_again"))
    found.run()
    args = parsed("continue_watch", found.words("continue", "continue_watch"))
    assert (args.cluster, args.region) == ("gpus", "us-east-1")
