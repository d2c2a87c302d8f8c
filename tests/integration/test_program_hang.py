"""Programs of others that really hang: they are ended, their stacks are kept, and the class is hang."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start
from tests.integration.test_launchers import Nodes, environments, nodes

from trainyard.commands import explain

__all__ = ["nodes"]
pytestmark = pytest.mark.slow
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
