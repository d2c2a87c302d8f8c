"""One pod of a job: what it runs on which node, how it ends, and in which directory it writes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.conftest import ROOT, Program
from tests.unit.jobs.plans import containers, request

from trainyard.commands import pod
from trainyard.config.load import config_sha256, load_config
from trainyard.errors import ConfigError, ServiceError
from trainyard.gateways.process import SignalForwarder
from trainyard.jobs.final_exit_codes import is_final
from trainyard.jobs.job_planning import plan_job
from trainyard.jobs.job_spec import JobSpec
from trainyard.jobs.job_submission import is_deployed
from trainyard.jobs.kinds import KINDS
from trainyard.pipeline import Step, StepRunner, follow_beside
from trainyard.proof import PARTS
from trainyard.run.directory import RunDirectory
from trainyard.run.node_folder import NodeFolder, mark_trained, write_node

SMOKE = ROOT / "configs" / "smoke.yaml"
Plan = Callable[..., dict[str, Any]]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Returns what a pod of the smoke test prints with --dry-run; keywords are variables."""

    def print_plan(*options: str | Path, **environment: str) -> dict[str, Any]:
        monkeypatch.setenv("TRAINYARD_RUN_ID", "x")  # the pod sets it
        monkeypatch.delenv("TRAINYARD_RUN_ID")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert pod.main(["--config", str(SMOKE), *map(str, options), "--dry-run"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return print_plan


def names_of(planned: dict[str, Any]) -> list[str]:
    return [step["step"] for step in planned["steps"]]


def test_the_first_node_stores_and_proves_what_all_have_trained(plan: Plan) -> None:
    given = ("--run-dir", "/runs/a", "--nproc-per-node", "2", "--grace", "60s")
    planned = plan(*given, *STORED, PET_NODE_RANK="0")
    assert names_of(planned) == ["train", "store", "prove", "report"]
    train, *after = planned["steps"]
    assert (train["processes"], train["grace"], train["resume"]) == (2, 60.0, "auto")
    assert {step["run_dir"] for step in after} == {"/runs/a"}
    assert {step.get("store") for step in after} == {"s3://runs", None}
    assert names_of(plan(*given, *STORED, PET_NODE_RANK="1")) == ["train"]
    assert names_of(plan(*given, PET_NODE_RANK="0")) == ["train"]


APART = ("--set", "checkpointing.shared=false", "--set", "compute.strategy=ddp")
STORED = ("--set", "artifacts.store=s3://runs")


def pod_of_two(plan: Plan, run_dir: Path, rank: int, *more: str) -> dict[str, Any]:
    """The plan of one of two pods that have folders of their own, in the environment of a TrainJob."""
    place = {"PET_NNODES": "2", "PET_NODE_RANK": str(rank), "PET_MASTER_ADDR": "localhost"}
    return plan("--run-dir", run_dir, "--grace", "60s", *APART, *STORED, *more, **place)


def test_pods_with_folders_of_their_own_fetch_before_and_store_beside_the_training(
    plan: Plan, tmp_path: Path
) -> None:
    for rank in (0, 1):
        fresh = pod_of_two(plan, tmp_path / "fresh", rank)
        assert names_of(fresh)[:2] == ["fetch", "train"]
        beside = fresh["beside_training"]
        assert (beside["step"], beside["others"], beside["store"]) == ("follow", 60.0, "s3://runs")
    directory = RunDirectory(tmp_path / "again")
    directory.path.mkdir()
    for rank in (0, 1):
        write_node(directory, NodeFolder("again", 1 - rank, 2))  # the rendezvous may number them differently
        again = pod_of_two(plan, directory.path, rank)
        proven = ["prove", "report"] if rank == 1 else []
        assert names_of(again) == ["store", "fetch", "train", "store", *proven]
        assert ("wait" in again["steps"][1]) is (rank == 0), "the main machine waits while it stores"


def test_a_further_pod_that_has_trained_to_the_end_only_stores_what_is_left(
    plan: Plan, tmp_path: Path
) -> None:
    """It has no outcome, which only the main machine records, and its peers have ended."""
    directory = RunDirectory(tmp_path)
    write_node(directory, NodeFolder("a", 1, 2))
    digest = config_sha256(load_config(SMOKE, [*APART, *STORED][1::2]).config)
    assert "train" in names_of(pod_of_two(plan, tmp_path, 1))
    mark_trained(directory, digest)
    assert names_of(pod_of_two(plan, tmp_path, 1)) == ["store"]
    other = pod_of_two(plan, tmp_path, 1, "--set", "training.max_steps=7")
    assert "train" in names_of(other), "another configuration is another training"


def test_pods_with_folders_of_their_own_that_could_not_resume_are_refused(
    program: Program, tmp_path: Path
) -> None:
    words = ("--config", SMOKE, "--run-dir", tmp_path / "a", *APART)
    place = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "localhost"}
    done = program("pod", *words, **place)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no store to resume from. Set artifacts.store" in done.stderr
    assert not (tmp_path / "a").exists()
    alone = program("pod", *words, "--dry-run", PET_NNODES="1", PET_NODE_RANK="0")
    assert names_of(json.loads(alone.stdout)) == ["train"], "one node keeps whole checkpoints"


def test_checkpoints_are_stored_beside_the_training_again_and_again_at_the_lowest_priority() -> None:
    """A follower that ends early starts again. It outlives the training, whose last save it stores."""
    before, seen = os.getpriority(os.PRIO_PROCESS, 0), list[tuple[int, int]]()
    follows, stored = threading.Event(), threading.Event()

    def follow(number: int, *, stop: threading.Event) -> int:
        seen.append((number, os.getpriority(os.PRIO_PROCESS, 0)))
        if len(seen) == 1:
            raise ServiceError("the store is away")
        if len(seen) == 2:
            return 1
        follows.set()
        stop.wait()
        stored.set()
        return 0

    with follow_beside(Step("follow", follow, {"number": 7}), pause=0.01):
        assert follows.wait(60) and not stored.is_set()
        assert os.getpriority(os.PRIO_PROCESS, 0) == before, "only its thread waits for others"
    assert stored.is_set()
    assert seen == [(7, 19)] * 3


def test_a_follower_that_does_not_end_does_not_keep_the_pod() -> None:
    over = threading.Event()
    step = Step("follow", lambda *, stop: over.wait() and int(stop.is_set()), {})
    with follow_beside(step, patience=0.05):
        pass
    over.set()


def test_an_earlier_verdict_is_not_taken_for_that_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proof that cannot be made fails, whatever an earlier report says."""
    monkeypatch.setattr(pod, "OUTCOME_SECONDS", 0.1)
    (tmp_path / "report").mkdir()
    parts = [{"name": name, "passed": True} for name in PARTS]
    (tmp_path / "report" / "proof.json").write_text(json.dumps({"proven": True, "parts": parts}))
    (tmp_path / "run.json").write_text("{")
    one = pod.Pod(run_dir=tmp_path, config=SMOKE, store=(tmp_path / "store").as_uri())
    with StepRunner() as steps:
        assert steps.run(one.prove()) == 1


def test_signals_reach_what_runs_and_its_exit_code_comes_back(tmp_path: Path) -> None:
    """The pod passes SIGTERM to the trainer, which saves; the pod ends with the trainer's exit code 75."""
    child = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        f"open({str(tmp_path / 'ready')!r}, 'w').close()\n"
        "time.sleep(60)\n"
    )
    parent = (
        "import sys\n"
        "from trainyard.gateways.process import SignalForwarder\n"
        "with SignalForwarder() as signals:\n"
        f"    sys.exit(signals.run_process([sys.executable, '-c', {child!r}]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent])
    deadline = time.monotonic() + 30
    while not (tmp_path / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 75


def test_a_child_that_is_killed_is_told_by_its_signal() -> None:
    with SignalForwarder() as signals:
        assert signals.run_process([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) == 137


def test_ray_is_asked_for_only_when_something_is_started(program: Program) -> None:
    done = program("step ray", "--num-nodes", "2", "--dry-run", "--", "torchrun", "train.py")
    found = json.loads(done.stdout)
    assert found == {"schema_version": 1, "nodes": 2, "command": ["torchrun", "train.py"], "files": []}
    damaged = program("step ray", "--", "true", TRAINYARD_FILES="[]")
    assert (damaged.returncode, "TRAINYARD_FILES" in damaged.stderr) == (2, True)


TRAIN = """\
import json, sys
for step in range(1, int(sys.argv[1]) + 1):
    print(json.dumps({"step": step, "loss": 5.0 / step}), flush=True)
"""
CASES: dict[str, dict[str, Any]] = {
    "same": {},
    "other namespace": {"namespace": "team-b"},
    "other owner": {"creator": "bob"},
    "other command": {"script": "other.py"},
    "more steps": {"steps": 20},
    "not known": {"creator": ""},
}
REFUSED = {
    "more steps": "training.max_steps: 12, now 20",
    "other namespace": "namespace team-a",
    "other owner": "creator alice",
    "other command": "command ",
}
DEPLOYED = {"same": True, "not known": True, "other namespace": False, "other owner": True}
"""While the first job is there: followed (True), sent (False); all others are refused."""


def job(*, script: str = "train.py", steps: int = 12, **changes: Any) -> JobSpec:
    command = json.dumps([sys.executable, script, "{training.max_steps}"])
    settings = ["recipe=command", f"program.command={command}", f"training.max_steps={steps}"]
    config = load_config(ROOT / "configs" / "smoke.yaml", settings).config
    return plan_job(config, request(**{"namespace": "team-a", "creator": "alice", **changes}))


def run_pod(plan: JobSpec, program: Program, folder: Path) -> Any:
    """Run the pod of a job with the words and variables of its manifest, in the first job's directory."""
    for name, text in plan.program.files.items():
        (folder / name).write_text(text)
    container = containers(KINDS[plan.kind].render(plan).job)[0]
    words = [word.replace("/etc/trainyard", str(folder)) for word in container["command"][5:]]
    words[words.index("--run-dir") + 1] = str(folder / "volume" / "team-a" / "llama")
    variables = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    kept = ("TRAINYARD_OWNER", "TRAINYARD_RUN_ID")
    return program("pod", *words, **{name: variables[name] for name in kept})


def find(made: dict[str, Any], body: Any) -> dict[str, Any] | None:
    """Return the first job, if it has the kind and the namespace of `body`."""
    same = body["kind"] == made["kind"] and body["metadata"]["namespace"] == made["metadata"]["namespace"]
    return made if same else None


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_only_a_job_of_the_same_owner_and_inputs_writes_into_the_directory_of_a_finished_run(
    program: Program, tmp_path: Path
) -> None:
    """Each other namespace, owner and command x the pod and the command that deploys."""
    for script in ("train.py", "other.py"):
        (tmp_path / script).write_text(TRAIN)
    volume, first = tmp_path / "volume", job()
    volume.mkdir(mode=0o777)
    volume.chmod(0o777)
    done = run_pod(first, program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (volume / "team-a").stat().st_mode & 0o777 == 0o777, "for jobs of other users"
    made = KINDS[first.kind].render(first).job
    wrong = []
    for name, changes in CASES.items():
        plan, before = job(**changes), content(volume)
        done = run_pod(plan, program, tmp_path)
        refusal = REFUSED.get(name)
        if refusal is None:
            wrong += [(name, "pod", done.stderr)] if done.returncode else []
        elif content(volume) != before or done.returncode != 2 or refusal not in done.stderr:
            wrong.append((name, "pod", done.stderr))
        try:
            found: bool | None = is_deployed(partial(find, made), plan, KINDS[plan.kind].render(plan))
        except ConfigError:
            found = None
        if found is not DEPLOYED.get(name):
            wrong.append((name, "deploy", str(found)))
        own = plan.program.command[plan.program.command.index("--run-dir") + 1]
        if own != f"/checkpoints/{plan.namespace}/llama":
            wrong.append((name, "deploy", own))
    assert not wrong
    assert is_final(2), "no operator starts the pod again"
