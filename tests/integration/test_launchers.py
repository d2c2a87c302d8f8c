"""Runs over several nodes in the environment that each operator gives its pods. CPU, gloo, one machine."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration.trainer_runs import TrainerRuns, end_of
from tests.unit.run.test_launch_environment import HOST, OPERATORS, PORT
from tests.waiting import wait_for
from tests.warm_start import descendants, environment_of

pytestmark = pytest.mark.slow
REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
CONFIG = f"""
extends: {REPOSITORY_ROOT}/configs/smoke.yaml
model:
  device: cpu
  architecture: {{hidden_size: 32, intermediate_size: 48, num_layers: 2, vocab_size: 257}}
training: {{batch_size: 2, max_steps: 4, warmup_steps: 1, validation_steps: null}}
compute: {{threads: 1, strategy: ddp}}
data: {{sequence_length: 16}}
checkpointing: {{save_steps: 2, keep_last: 3, mode: sync}}
monitoring: {{tensorboard: false}}
"""
OURS = ("PET_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "NNODES", "NPROC", "NODE_RANK", "JOB_", "AGENT_")
Environments = list[dict[str, str]]


def environments(operator: str, *, per_node: int = 1) -> Environments:
    """Return what an operator gives to each of two pods, which meet at a free port of this machine."""
    port = str(free_port())
    here = {HOST: "localhost", str(PORT): port, f"{HOST}:{PORT}": f"localhost:{port}"}
    of_nodes = [OPERATORS[operator](2, node, per_node) for node in range(2)]
    return [{name: here.get(value, value) for name, value in each.items()} for each in of_nodes]


AGENT = f"""#!/bin/sh
exec '{sys.executable}' -c '
import os, sys
place = ["--node-rank=" + os.environ["STAND_IN_RANK"], "--master-addr=localhost"]
words = [word for word in sys.argv[1:] if not word.startswith(("--shutdown", "--server"))]
assert "--server-port=8080" in sys.argv and "--shutdown-signal=SIGTERM" in sys.argv, sys.argv
line = [sys.executable, "-m", "torch.distributed.run", *place, "--master-port=" + os.environ["STAND_IN_PORT"]]
os.execv(sys.executable, [*line, *words])
' "$@"
"""
"""A stand-in for `hyperpodrun`: it reads its rank from the environment, not from the operator's server."""


def hyperpod(folder: Path) -> Environments:
    """As HyperPod's operator writes it, with its agent in the image."""
    (folder / "hyperpodrun").write_text(AGENT)
    (folder / "hyperpodrun").chmod(0o755)
    common = {"PATH": f"{folder}:{os.environ['PATH']}", "STAND_IN_PORT": str(free_port())}
    return [own | common | {"STAND_IN_RANK": str(node)} for node, own in enumerate(environments("hyperpod"))]


class Nodes(TrainerRuns):
    """Starts the nodes of runs, each one `trainyard train`, and ends what a test leaves behind."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, config=CONFIG)
        self._started: list[subprocess.Popen[str]] = []

    def start_all(
        self, given: Environments, *settings: str, run_dirs: list[str], more: tuple[str, ...] = ()
    ) -> "list[subprocess.Popen[str]]":
        clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        nodes = [
            self.start(run_dir, *settings, more=more, environment={**clean, **own})
            for own, run_dir in zip(given, run_dirs, strict=True)
        ]
        self._started += nodes
        return nodes

    def finish_all(
        self, given: Environments, *settings: str, run_dir: str, more: tuple[str, ...] = ()
    ) -> list[tuple[int, str]]:
        run_dirs = [run_dir] * len(given)
        return [*map(end_of, self.start_all(given, *settings, run_dirs=run_dirs, more=more))]

    def end(self) -> None:
        for node in self._started:
            if node.poll() is None:
                node.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    result = Nodes(tmp_path_factory.mktemp("launchers"))
    yield result
    result.end()


def test_a_pytorchjobs_variables_alone_start_one_run_over_two_nodes(nodes: Nodes) -> None:
    for code, errors in nodes.finish_all(environments("pytorchjob", per_node=2), run_dir="whole"):
        assert code == 0, errors
    run = nodes.record("whole")
    assert run["outcome"]["status"] == "succeeded"
    assert (run["hardware"]["world_size"], run["hardware"]["local_world_size"]) == (4, 2)
    assert run["plan"]["samples_per_step"] == 8


@pytest.mark.parametrize(("launcher", "here", "world"), [("elastic", 2, 4), ("hyperpod", 1, 2)])
def test_each_launchers_variables_alone_give_its_shape(
    nodes: Nodes, launcher: str, here: int, world: int
) -> None:
    given = hyperpod(nodes.folder) if launcher == "hyperpod" else environments(launcher, per_node=here)
    for code, errors in nodes.finish_all(given, "training.max_steps=2", run_dir=launcher):
        assert code == 0, errors
    hardware = nodes.record(launcher)["hardware"]
    assert (hardware["world_size"], hardware["local_world_size"]) == (world, here)


def test_a_signal_to_one_node_ends_both_with_75_and_the_same_checkpoint(nodes: Nodes) -> None:
    both = nodes.start_all(environments("elastic"), "training.max_steps=100000", run_dirs=["stopped"] * 2)
    nodes.wait_for_row("stopped", both[0])
    both[1].send_signal(signal.SIGTERM)
    for code, errors in map(end_of, both):
        assert code == 75, errors
    run = nodes.record("stopped")
    assert run["outcome"]["status"] == "stopped"
    assert 0 <= run["outcome"]["seconds_since_signal"] < 600, "though rank 0 got no signal"
    assert (nodes.folder / "stopped" / "checkpoints" / f"step-{run['outcome']['steps']:08}").is_dir()


def test_nodes_that_do_not_share_the_run_directory_are_refused_before_training(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nodes.folder / "sitecustomize.py").write_text(IMPATIENT)
    monkeypatch.setenv("PYTHONPATH", str(nodes.folder))
    begun = nodes.start_all(environments("trainjob"), run_dirs=["here", "there"])
    for code, errors in map(end_of, begun):
        assert code == 2, errors
        assert "is not the same folder on all machines: rank 1 on" in errors
        assert "ReadWriteMany" in errors
        assert "Traceback" not in errors
    assert not (nodes.folder / "here").exists(), "a run that never started leaves nothing"


def test_a_rank_that_is_stopped_for_ever_ends_the_run_on_both_nodes(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own watchdog is stopped with it: the other node notices the hang; the rank's torchrun ends it."""
    (nodes.folder / "sitecustomize.py").write_text(IMPATIENT)
    monkeypatch.setenv("PYTHONPATH", str(nodes.folder))
    more = ("training.max_steps=100000", "monitoring.hang_seconds=4")
    both = nodes.start_all(environments("jobset"), *more, run_dirs=["frozen"] * 2, more=("--grace", "5s"))
    nodes.wait_for_row("frozen", both[0])
    (worker,) = (pid for pid in descendants(both[1].pid) if "LOCAL_RANK" in environment_of(pid))
    os.kill(worker, signal.SIGSTOP)
    for code, errors in map(end_of, both):
        assert code == 1, errors
    outcome = nodes.record("frozen")["outcome"]
    assert outcome["status"] == "failed"
    assert "nothing moved for" in outcome["reason"]
    assert not Path(f"/proc/{worker}").exists()


IMPATIENT = """
import os
if "LOCAL_RANK" not in os.environ:  # torchrun waits a minute for workers to end by themselves
    from trainyard.training.runtime import torchrun_main
    torchrun_main._POLL_SECONDS, torchrun_main._ALONE_SECONDS = 0.5, 1.0
else:  # a file of another node may show late
    from trainyard.training.runtime import shared_directory
    shared_directory._PATIENCE_SECONDS = 0.5
"""


ENDLESS = ("training.max_steps=100000", "training.lr_scheduler=constant")


@pytest.fixture
def fresh_nodes(tmp_path: Path) -> Iterator[Nodes]:
    result = Nodes(tmp_path)
    yield result
    result.end()


def slowed(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Let every worker import `module` first."""
    text = f"import os\nif 'LOCAL_RANK' in os.environ:\n    exec({module!r})\n"
    (nodes.folder / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(nodes.folder))


SLOW_DATA = """
import time
from trainyard.training.data import training_data
from trainyard.training.runtime import world
world._START_SECONDS = world.CONTROL_SECONDS = 15
ready_data = training_data.ready_data
def prepared(*given):
    if os.environ["RANK"] == "1":
        time.sleep(22)
        open({file!r}, "w").close()
    return ready_data(*given)
training_data.ready_data = prepared
"""
"""A machine prepares its data for longer than the processes wait to join, or for each other's messages."""


def test_data_that_take_longer_to_prepare_than_the_join_may_take_are_waited_for(
    fresh_nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowed(fresh_nodes, monkeypatch, SLOW_DATA.format(file=str(fresh_nodes.folder / "slept")))
    for code, errors in fresh_nodes.finish_all(environments("jobset"), run_dir="prepared"):
        assert code == 0, errors
    assert (fresh_nodes.folder / "slept").exists()
    assert fresh_nodes.record("prepared")["hardware"]["world_size"] == 2


SLOW_STEPS = """
import time
from trainyard.training.loop import Trainer
run, fsync = Trainer.step, os.fsync
def slow_run(self):
    if os.environ["RANK"] == "1":
        time.sleep(2)
    return run(self)
def slow_fsync(file):
    time.sleep(0.1)
    fsync(file)
Trainer.step, os.fsync = slow_run, slow_fsync
"""
"""One process has slow steps, and all have a slow disk."""


def rows_of(events: Path, kind: str) -> list[dict[str, Any]]:
    lines = events.read_text().splitlines() if events.exists() else []
    return [row for row in map(json.loads, lines) if row["event"] == kind]


def workers_of(node: "subprocess.Popen[str]") -> list[int]:
    return [pid for pid in descendants(node.pid) if "LOCAL_RANK" in environment_of(pid)]


def test_every_rank_ends_with_75_and_the_launcher_gives_it_the_time_that_it_needs(
    fresh_nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowed(fresh_nodes, monkeypatch, SLOW_STEPS)
    settings, folders = (*ENDLESS, "checkpointing.save_steps=2"), ["stopped"] * 2
    events = fresh_nodes.folder / "stopped" / "events.jsonl"
    both = fresh_nodes.start_all(environments("jobset"), *settings, run_dirs=folders, more=("--grace", "3s"))
    wait_for(lambda: rows_of(events, "grace_too_short"), "the notice", alive=both)
    (told,) = rows_of(events, "grace_too_short")
    saved = rows_of(events, "checkpoint_saved")[0]["complete_after_seconds"]
    assert (told["grace_seconds"], saved > 0.1) == (3.0, True)
    assert told["needed_seconds"] >= 2 + saved / 2 + 2, "the slowest step of any rank, a save, and the end"
    both[0].send_signal(signal.SIGTERM)
    for code, errors in map(end_of, both):
        assert code == 75, errors

    before = len(rows_of(events, "checkpoint_saved"))
    both = fresh_nodes.start_all(environments("jobset"), *settings, run_dirs=folders, more=("--grace", "90s"))
    wait_for(lambda: len(rows_of(events, "checkpoint_saved")) > before + 1, "two saves", alive=both)
    both[1].send_signal(signal.SIGTERM)
    for code, errors in map(end_of, both):
        assert code == 75, errors
    outcome = fresh_nodes.record("stopped")["outcome"]
    assert outcome["status"] == "stopped"
    assert outcome["grace_seconds_needed"] >= 2 + 2, "the slowest step counts though the first may not"

    record = fresh_nodes.folder / "stopped" / "run.json"
    slow = {**fresh_nodes.record("stopped"), "outcome": {**outcome, "grace_seconds_needed": 400.0}}
    record.write_text(json.dumps(slow))
    both = fresh_nodes.start_all(environments("jobset"), *settings, run_dirs=folders)
    for node in both:
        worker, *_ = wait_for(partial(workers_of, node), "a worker", alive=both)
        assert environment_of(worker)["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "600"
    wait_for(lambda: len(rows_of(events, "resumed")) > 1, "the resume", alive=both)
    both[0].send_signal(signal.SIGTERM)
    for code, errors in map(end_of, both):
        assert code == 75, errors
