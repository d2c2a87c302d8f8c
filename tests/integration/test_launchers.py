"""Runs over several nodes in the environment that each operator gives its pods. CPU, gloo, one machine.

A node is one `trainyard train`; only an operator's variables tell it the number of nodes.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.trainer_runs import TrainerRuns, end_of
from tests.unit.run.test_launch_environment import HOST, OPERATORS, PORT
from tests.warm_start import descendants, environment_of

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
    """Starts the nodes of runs, and ends what a test leaves behind."""

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


@pytest.mark.slow
def test_a_pytorchjobs_variables_alone_start_one_run_over_two_nodes(nodes: Nodes) -> None:
    for code, errors in nodes.finish_all(environments("pytorchjob", per_node=2), run_dir="whole"):
        assert code == 0, errors
    run = nodes.record("whole")
    assert run["outcome"]["status"] == "succeeded"
    assert (run["hardware"]["world_size"], run["hardware"]["local_world_size"]) == (4, 2)
    assert run["plan"]["samples_per_step"] == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "here", "world"),
    [("elastic", 2, 4), ("hyperpod", 1, 2)],
)
def test_each_launchers_variables_alone_give_its_shape(
    nodes: Nodes, launcher: str, here: int, world: int
) -> None:
    given = hyperpod(nodes.folder) if launcher == "hyperpod" else environments(launcher, per_node=here)
    for code, errors in nodes.finish_all(given, "training.max_steps=2", run_dir=launcher):
        assert code == 0, errors
    hardware = nodes.record(launcher)["hardware"]
    assert (hardware["world_size"], hardware["local_world_size"]) == (world, here)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
