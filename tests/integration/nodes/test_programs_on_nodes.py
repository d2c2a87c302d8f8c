"""`recipe: command` in pods that really run: programs of somebody else, in a repository with nothing of ours.

Each trains, is killed at a random moment, resumes, is stored into a real S3 server and proven.
"""

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.git_repository import init_repository
from tests.integration.job_world import NAMESPACE
from tests.integration.nodes.conftest import CLAIM, IMAGE, PODS, Nodes

pytestmark = pytest.mark.slow
TRAINER = Path(__file__).parents[1] / "any_program" / "plain_trainer.py"
TRANSFORMERS = Path(__file__).parents[1] / "trainers" / "hugging_face.py"
LIGHTNING = TRANSFORMERS.with_name("lightning_loop.py")
Json = dict[str, Any]
CONFIG = """\
recipe: command
program:
  command: [{python}, train.py, {words}]
  data: [data]
  checkpoints: {checkpoints}
  resume: [--resume_from_checkpoint, "{{checkpoint}}"]
  processes: {processes}
"""


@dataclass(frozen=True)
class Program:
    """A program, and how it is started."""

    name: str
    script: Path
    words: str
    steps: int
    checkpoints: str = "out/checkpoint-*"
    processes: int = 1
    nodes: int = 1


# Several pods save into a folder that all of them see: each rank of the Trainer writes a part of it.
SHARED = f"/{CLAIM}/programs/pods"
SLOWLY = "--save_steps, '4', --pause, '0.5'"
PROGRAMS = [
    Program("plain", TRAINER, f"--steps, '24', {SLOWLY}", 24),
    Program("trl", TRANSFORMERS, f"--trl, --max_steps, '24', {SLOWLY}", 24),
    Program("lightning", LIGHTNING, f"--max_steps, '24', {SLOWLY}", 24, checkpoints="out/*.ckpt"),
    Program("processes", TRANSFORMERS, f"--max_steps, '24', {SLOWLY}", 24, processes=2),
    Program(
        "pods",
        TRANSFORMERS,
        f"--max_steps, '24', {SLOWLY}, --output_dir, {SHARED}",
        24,
        checkpoints=f"{SHARED}/checkpoint-*",
        nodes=2,
    ),
]


@pytest.fixture
def make_repository(tmp_path: Path) -> Callable[[Program], Path]:
    """A function that makes a repository of somebody else, and returns its folder; the pods see it."""

    def make(program: Program) -> Path:
        folder = tmp_path / program.name
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "tokens.txt").write_text("1 2 3")
        (folder / "train.py").write_text(program.script.read_text())
        (folder / "requirements.txt").write_text("pinned==1.0\n")
        (folder / ".gitignore").write_text("out/\n")
        (folder / "trainyard.yaml").write_text(
            CONFIG.format(
                python=json.dumps(sys.executable),
                words=program.words,
                checkpoints=json.dumps(program.checkpoints),
                processes=program.processes,
            )
        )
        init_repository(folder)
        return folder

    return make


def line_of(program: Program, folder: Path, job: str, nodes: Nodes) -> list[str]:
    settings = {
        **PODS,
        "cluster.pod.directory": folder,
        "cluster.pod.python": sys.executable,
        "artifacts.store": nodes.store,
    }
    options = ("--num-nodes", str(program.nodes), "--image-uri", IMAGE, "--volume", CLAIM)
    return nodes.line_with(folder / "trainyard.yaml", job, "pytorchjob", *options, **settings)


def judge(job: str, program: Program, nodes: Nodes) -> None:
    """Check the record of a finished run, and its proof."""
    run = nodes.run(job)
    outcome = run["outcome"]
    assert (outcome["status"], outcome["steps"]) == ("succeeded", program.steps), outcome
    assert outcome["checkpoint"]["step"] == program.steps
    world = program.processes * program.nodes
    assert run["hardware"] == {"world_size": world, "local_world_size": program.processes}
    rows = [
        json.loads(line)
        for line in (nodes.folder / NAMESPACE / job / "metrics.jsonl").read_text().splitlines()
    ]
    # Epochs are an axis of their own.
    assert [row["step"] for row in rows if "step" in row] == list(range(1, program.steps + 1))
    proof = nodes.prove(job)
    assert proof["proven"] is True, proof


@pytest.fixture(scope="module", autouse=True)
def training_operator(nodes: Nodes) -> None:
    nodes.work("pytorchjob")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_in_pods_is_killed_at_a_random_moment_resumed_stored_and_proven(
    program: Program, nodes: Nodes, make_repository: Callable[[Program], Path]
) -> None:
    job = f"program-{program.name}"
    line = line_of(program, make_repository(program), job, nodes)
    nodes.run_deploy(line, job)
    step = random.randrange(1, program.steps // 2)  # what is killed still trains when the command arrives
    nodes.wait_for_step(job, step)
    pod = random.choice(sorted(nodes.pods(job)))
    nodes.plane.kubectl("exec", pod, "-c", "pytorch", "--", "sh", "-c", "kill -9 -1 || true")
    told = nodes.run_deploy([*line, "--wait", "--timeout", "12m"], job)
    assert "Succeeded" in told
    judge(job, program, nodes)
    starts = [event for event in nodes.events(job) if event["event"] in ("started", "resumed")]
    print(f"{job}: {pod} killed at step {step}; starts: {[(e['event'], e.get('step')) for e in starts]}")
    assert len(starts) >= 2


def test_the_run_of_another_team_on_the_same_file_system_stays_as_it_is(
    nodes: Nodes, make_repository: Callable[[Program], Path]
) -> None:
    """As the first team: its finished run is what it was, whatever others start under its name."""
    first = make_repository(Program("first", TRAINER, "--steps, '6', --save_steps, '3'", 6))
    other = make_repository(Program("other", TRAINER, "--steps, '9', --save_steps, '3'", 9))
    space = "/api/v1/namespaces/team-b"
    nodes.request("POST", "/api/v1/namespaces", {"metadata": {"name": "team-b"}})
    nodes.plane.add_volume("team-b", path=nodes.folder)
    claim = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": "team-b",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    nodes.request("POST", f"{space}/persistentvolumeclaims", {"metadata": {"name": CLAIM}, "spec": claim})
    nodes.request("POST", f"{space}/secrets", {"metadata": {"name": "s3"}})
    ours = nodes.folder / NAMESPACE / "shared"

    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in ours.rglob("*") if path.is_file()}

    def send(folder: Path, *options: str, code: int) -> str:
        settings = {**PODS, "cluster.pod.directory": folder, "cluster.pod.python": sys.executable}
        given = ("--image-uri", IMAGE, "--volume", CLAIM, "--wait", "--timeout", "12m", *options)
        line = nodes.line_with(folder / "trainyard.yaml", "shared", "pytorchjob", *given, **settings)
        return nodes.run_deploy(line, "shared", code)

    send(first, code=0)
    before = content()
    assert nodes.run("shared")["outcome"]["steps"] == 6
    send(other, "--namespace", "team-b", code=0)
    assert content() == before
    assert json.loads((nodes.folder / "team-b" / "shared" / "run.json").read_text())["outcome"]["steps"] == 9
    nodes.manage("delete", "shared", "--no-logs")
    assert "Failed" in send(other, code=1)
    failure = json.loads(nodes.manage("status", "shared", "--json", code=1))["failure"]
    assert (failure["class"], failure["exit_code"]) == ("configuration", 2)
    assert "has the run of another job: command " in " ".join(failure["lines"])
    assert content() == before
    assert not [path for path in ours.parent.iterdir() if path.name.startswith(".shared")]


def manifest_of(kind: str, folder: Path) -> list[Json]:
    """The job of somebody who wrote it themselves: the program of `folder`, in one pod."""
    command = [sys.executable, "train.py", "--steps", "12", "--save_steps", "4"]
    container = {
        "name": {"pytorchjob": "pytorch", "trainjob": "node", "job": "trainer"}[kind],
        "image": IMAGE,
        "command": command,
        "workingDir": str(folder),
        "envFrom": [{"secretRef": {"name": "s3"}}],
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}},
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "runs", "mountPath": f"/{CLAIM}"}],
    }
    volume = {"name": "runs", "persistentVolumeClaim": {"claimName": CLAIM}}
    pod: Json = {"containers": [container], "volumes": [volume]}
    meta = {"name": f"manifest-{kind}", "labels": {"team": "a"}}
    if kind == "job":
        spec = {"completions": 1, "parallelism": 1, "completionMode": "Indexed", "backoffLimit": 0}
        template = {"spec": {**pod, "restartPolicy": "Never"}}
        return [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": meta,
                "spec": {**spec, "template": template},
            }
        ]
    if kind == "pytorchjob":
        master = {"replicas": 1, "restartPolicy": "OnFailure", "template": {"spec": pod}}
        replicas = {"pytorchReplicaSpecs": {"Master": master}}
        return [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": meta, "spec": replicas}]
    step = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    group = {"name": "node", "template": {"metadata": step, "spec": {"template": {"spec": pod}}}}
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": "theirs", "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": {"replicatedJobs": [group]}}},
    }
    used = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "theirs"}
    spec = {"runtimeRef": used, "trainer": {"command": command, "numNodes": 1}}
    job = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": meta, "spec": spec}
    return [runtime, job]


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob", "job"])
def test_a_manifest_of_somebody_else_is_sent_wrapped_and_proven(
    kind: str, nodes: Nodes, make_repository: Callable[[Program], Path]
) -> None:
    program = Program(f"their-{kind}", TRAINER, "--steps, '12', --save_steps, '4'", 12)
    folder, job = make_repository(program), f"manifest-{kind}"
    if kind == "trainjob":
        nodes.work(kind)
    documents = map(json.dumps, manifest_of(kind, folder))
    (folder / "job.yaml").write_text("\n---\n".join(documents))
    line = [sys.executable, "-m", "trainyard", "job", "deploy", "--manifest", str(folder / "job.yaml")]
    line += [
        "--prove",
        "--config",
        str(folder / "trainyard.yaml"),
        "--kubeconfig",
        str(nodes.plane.kubeconfig),
    ]
    settings = {**PODS, "cluster.pod.directory": folder, "cluster.pod.python": sys.executable}
    settings |= {"artifacts.store": nodes.store}
    line += ["--namespace", NAMESPACE, *(f"--set={key}={value}" for key, value in settings.items())]
    told = nodes.run_deploy(
        [*line, "--accept", "storage", "--accept", "operator", "--wait", "--timeout", "8m"], job
    )
    assert "Succeeded" in told, told
    judge(job, program, nodes)
