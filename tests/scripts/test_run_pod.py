"""One pod of a job: what it runs on which node, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.conftest import ROOT

from trainyard.commands import pod
from trainyard.config.load import config_sha256, load_config
from trainyard.errors import ServiceError
from trainyard.gateways.process import SignalForwarder
from trainyard.pipeline import Step, StepRunner, follow_beside
from trainyard.proof import PARTS
from trainyard.run.directory import RunDirectory
from trainyard.run.node_folder import NodeFolder, mark_trained, write_node

SMOKE = ROOT / "configs" / "smoke.yaml"
Program = Callable[..., subprocess.CompletedProcess[str]]
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
