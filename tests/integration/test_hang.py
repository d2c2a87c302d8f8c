"""Trainings and programs of others that hang end by themselves; where every process was is kept."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start
from tests.integration.test_launchers import Nodes, environments, nodes
from tests.integration.trainer_runs import TrainerRuns

from trainyard.commands import explain

pytestmark = pytest.mark.slow
SETTINGS = (
    *("training.max_steps=12", "training.validation_steps=null", "training.validation_batches=1"),
    *("checkpointing.save_steps=4", "compute.strategy=ddp"),
)
# Python imports it as it starts: the sixth batch of one rank never comes, and only then patience is short.
STUCK = """
import os, threading

if os.environ.get("RANK") == "1":
    from trainyard.training.data.batches import TokenBatches
    from trainyard.training.runtime.watchdog import Watchdog

    whole = TokenBatches.batch

    def wait_for_ever(self, step):
        if step == 5:
            Watchdog.limit = lambda self: 1.5
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        return whole(self, step)

    TokenBatches.batch = wait_for_ever
"""


# Rank 1 fails before it joins the other.
FAILS = """
import os

if os.environ.get("RANK") == "1":
    from trainyard.errors import ConfigError
    from trainyard.training import loop

    def without_a_device(config):
        raise ConfigError("Rank 1 has no device.")

    loop.prepare_device = without_a_device
"""
# Rank 1 is killed at its sixth batch, and rank 0 is stuck there with its usual patience of minutes.
IS_KILLED = """
import os, signal, threading

if "RANK" in os.environ:
    from trainyard.training.runtime import watchdog
    from trainyard.training.data.batches import TokenBatches

    watchdog._LOST_SECONDS = 2.0
    whole = TokenBatches.batch

    def be_killed(self, step):
        if step == 5:
            if os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        return whole(self, step)

    TokenBatches.batch = be_killed
"""
# Rank 1 fails in its sixth step while rank 0 waits for it in a collective. Only all processes together can
# destroy a group of NCCL; one alone can destroy gloo's, so the wait is planted.
FAILS_IN_A_STEP = """
import os, time

if "RANK" in os.environ:
    import torch.distributed
    from trainyard.errors import DataError
    from trainyard.training.data.batches import TokenBatches

    whole = TokenBatches.batch

    def fail(self, step):
        if step == 5 and os.environ["RANK"] == "1":
            raise DataError("Rank 1 cannot read its tokens.")
        return whole(self, step)

    TokenBatches.batch = fail
    torch.distributed.destroy_process_group = lambda *_: time.sleep(1000)
"""


class Trainer(TrainerRuns):
    """Two processes, one of which is stuck in step 6."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, *SETTINGS)
        self.run, self.output = folder / "run", folder / "output"
        monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        monkeypatch.setenv("GITHUB_OUTPUT", str(self.output))

    def train(self, play: str) -> tuple[int, str, str]:
        """Return the exit code, the output and the errors."""
        (self.folder / "sitecustomize.py").write_text(play)
        process = self.start("run", processes=2, more=("--json",))
        printed, errors = process.communicate(timeout=300)
        return process.returncode, printed, errors


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    return Trainer(tmp_path, monkeypatch)


def test_a_hang_of_one_rank_leaves_the_stacks_of_all_and_ends_all(trainer: Trainer) -> None:
    code, printed, errors = trainer.train(STUCK)
    assert code == 1, errors
    assert json.loads(printed) == {"schema_version": 1, **trainer.outcome("run")}
    assert re.findall(r"^exit_code<<(.+)\n(\d+)\n\1$", trainer.output.read_text(), re.M)[-1][1] == "1"
    assert errors.count("nothing moved for") == 1, errors
    assert "lost another process" not in errors
    logs = trainer.run / "logs"
    assert "in wait_for_ever" in (logs / "hang-rank-1.txt").read_text()
    waiting = (logs / "hang-rank-0.txt").read_text()
    assert "wait_for_ever" not in waiting
    assert "_forward_backward" in waiting, "it waits in a collective"
    calls = json.loads((logs / "hang-gloo-rank-0.json").read_bytes())["entries"]
    assert {call["profiling_name"] for call in calls} >= {"gloo:all_reduce"}
    (hang,) = [event for event in trainer.events("run") if event["event"] == "hang_suspected"]
    assert hang["files"] == ["logs/hang-rank-0.txt", "logs/hang-rank-1.txt"]
    outcome = trainer.outcome("run")
    assert (outcome["status"], outcome["exit_code"], outcome["steps"]) == ("failed", 1, 5)
    assert outcome["reason"].startswith("Step 6: nothing moved for ")
    assert f"once the cause is fixed: trainyard train --config {trainer.run}/config.yaml" in errors
    assert not (logs / "hang-suspected").exists()


def test_the_error_of_one_rank_is_said_though_its_group_cannot_be_destroyed(trainer: Trainer) -> None:
    code, _, errors = trainer.train(FAILS_IN_A_STEP)
    assert code == 1, errors
    said = [line for line in errors.splitlines() if " INFO " not in line]
    assert said[0] == "Rank 1 cannot read its tokens.", errors
    assert "Traceback" not in errors
    assert trainer.outcome("run")["status"] == "failed"


def test_a_process_that_fails_before_it_joins_ends_the_others_and_has_the_last_word(trainer: Trainer) -> None:
    code, printed, errors = trainer.train(FAILS)
    assert (code, json.loads(printed)["exit_code"]) == (2, 2)
    said = [line for line in errors.splitlines() if " INFO " not in line]  # progress on a slow machine
    assert said[-1] == "Rank 1 has no device.", errors
    assert not trainer.run.exists()


def test_a_process_that_is_killed_ends_one_that_does_not_notice_with_an_outcome(trainer: Trainer) -> None:
    code, printed, errors = trainer.train(IS_KILLED)
    assert code == 1, errors
    assert json.loads(printed) == {"schema_version": 1, **trainer.outcome("run")}
    assert trainer.outcome("run")["reason"].startswith("Step 6: after the end of rank 1 nothing moved for ")
    assert re.search(r"^Rank 1 \(pid \d+\) was killed by SIGKILL\.$", errors.splitlines()[-1]), errors
    (hang,) = [event for event in trainer.events("run") if event["event"] == "hang_suspected"]
    assert (hang["lost"], hang["files"]) == ([1], ["logs/hang-rank-0.txt"])


__all__ = ["nodes"]
ALONE = """
import json, threading, time
def wait_for_what_never_comes():
    threading.Event().wait()
def load_nothing():
    while True:
        time.sleep(1)
threading.Thread(target=load_nothing, daemon=True).start()
for step in range(1, 4):
    print(json.dumps({"step": step, "loss": 1.0 / step}), flush=True)
    time.sleep(0.1)
wait_for_what_never_comes()
"""
TWO = """
import json, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
def sleep_instead_of_the_collective():
    time.sleep(3600)
for step in range(1, 100):
    if step == 4 and dist.get_rank() == dist.get_world_size() - 1:
        sleep_instead_of_the_collective()
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 0:
        print(json.dumps({"step": step, "loss": 1.0 / step}), flush=True)
"""
CONFIG = """
recipe: command
program: {{command: [{python}, train.py], processes: {processes}, data: [], hang_minutes: {minutes}}}
compute: {{network: tcp}}
"""


def run(folder: Path, script: str, *, processes: int = 1, minutes: str = "0.08") -> dict[str, Any]:
    (folder / "train.py").write_text(script)
    text = CONFIG.format(python=json.dumps(sys.executable), processes=processes, minutes=minutes)
    (folder / "trainyard.yaml").write_text(text)
    words = ["--config", "trainyard.yaml", "--run-dir", "runs/one", "--grace", "5s"]
    start = [sys.executable, "-m", "trainyard", "train", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = warm_start.run(start, cwd=folder, env=environment, timeout=240)
    outcome: dict[str, Any] = json.loads((folder / "runs/one/run.json").read_text())["outcome"]
    return {**outcome, "code": done.returncode, "log": done.stdout + done.stderr}


def test_a_program_that_hangs_is_ended_with_the_stacks_of_its_threads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run(tmp_path, ALONE)
    assert (outcome["code"], outcome["status"], outcome["steps"]) == (1, "failed", 3), outcome
    assert outcome["failure"]["class"] == "hang"
    assert outcome["reason"].startswith("Step 4: nothing moved for ")
    stacks = (tmp_path / "runs/one/logs/hang-node-0.txt").read_text()
    assert "wait_for_what_never_comes" in stacks
    assert "load_nothing" in stacks
    events = [json.loads(line) for line in (tmp_path / "runs/one/events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "hang_suspected"] == [3]
    for place in (["--run-dir", str(tmp_path / "runs/one")], ["--log", str(tmp_path / "pod.log")]):
        (tmp_path / "pod.log").write_text(outcome["log"])
        explain.main([*place, "--json"])
        found = json.loads(capsys.readouterr().out)
        assert (found["class"], found["retryable"]) == ("hang", True), found


def test_a_rank_that_leaves_its_collective_shows_in_the_stacks_of_both(tmp_path: Path) -> None:
    outcome = run(tmp_path, TWO, processes=2, minutes="0.1")
    assert (outcome["code"], outcome["failure"]["class"]) == (1, "hang"), outcome
    stacks = (tmp_path / "runs/one/logs/hang-node-0.txt").read_text()
    assert "sleep_instead_of_the_collective" in stacks
    assert "all_reduce" in stacks


def test_the_stacks_of_the_other_machine_are_kept_too(nodes: Nodes) -> None:
    """The first machine notices that no row comes; the rank that hangs is on the second one."""
    (nodes.folder / "train.py").write_text(TWO)
    text = CONFIG.format(python=json.dumps(sys.executable), processes=1, minutes="0.1")
    script = json.dumps(str(nodes.folder / "train.py"))
    (nodes.folder / "config.yaml").write_text(text.replace("train.py", script))
    for code, errors in nodes.finish_all(environments("trainjob"), run_dir="hung"):
        assert code == 1, errors
    logs = nodes.folder / "hung" / "logs"
    assert "all_reduce" in (logs / "hang-node-0.txt").read_text()
    assert "sleep_instead_of_the_collective" in (logs / "hang-node-1.txt").read_text()
    assert nodes.record("hung")["outcome"]["failure"]["class"] == "hang"
