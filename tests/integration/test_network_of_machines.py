"""The network of machines over gloo: measured before training, and judged by the log of a stand-in."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start
from tests.integration.test_launchers import CONFIG, Nodes, environments, hyperpod, nodes
from tests.unit.watch.test_network_verdict import VERSIONS, cases, process

from trainyard.commands import explain, prove
from trainyard.errors import ExitCode
from trainyard.watch.failure_logs.failure_explanation import explain_logs
from trainyard.watch.failure_logs.log_text import log_of

pytestmark = pytest.mark.slow
OURS = ("PET_", "TRAINYARD_", "MASTER_", "WORLD_", "RANK", "LOCAL_", "NCCL_", "JOB_COMPLETION")


def on_two_nodes(words: list[str], **more: str) -> list[tuple[int, str, str]]:
    """Run a command as two pods of a TrainJob do; return exit code, stdout and stderr of each."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    places = [{**clean, **place, **more} for place in environments("trainjob")]
    started = [warm_start.start([sys.executable, *words], env=place) for place in places]
    ends = [process.communicate(timeout=240) for process in started]
    return [(process.returncode, *end) for process, end in zip(started, ends, strict=True)]


def measure(*words: str, **more: str) -> list[tuple[int, str, str]]:
    given = ["--device", "cpu", "--size-mib", "8", *words]
    return on_two_nodes(["-m", "trainyard", "network", "measure", *given], **more)


def test_two_machines_measure_the_same_and_nothing_is_compared_without_a_figure() -> None:
    found: list[dict[str, Any]] = []
    for code, out, errors in measure("--json"):
        assert code == 0, errors
        found.append(json.loads(out))
    assert found[0] == found[1]
    assert (found[0]["processes"], found[0]["nodes"], found[0]["backend"]) == (2, 2, "gloo")
    assert found[0]["bus_gb_per_second"] > 0 and found[0]["floor"] is None
    speed = found[0]["bytes"] / found[0]["seconds"] / 1e9
    assert found[0]["bus_gb_per_second"] == pytest.approx(speed), "2 (n - 1) / n is 1 for two"


def test_a_peer_that_never_comes_ends_the_measurement() -> None:
    place = environments("trainjob")[0] | {"PET_NNODES": "1", "PET_NODE_RANK": "0"}
    words = ["-m", "trainyard", "network", "measure", "--device", "cpu", "--nproc-per-node", "1"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    line, there = [sys.executable, *words], clean | place
    alone = subprocess.run(line, env=there, capture_output=True, text=True, timeout=60)
    assert alone.returncode == ExitCode.USAGE and "no network to measure" in alone.stderr


LITTLE = """
import argparse
from trainyard.plan import network_floor
network_floor.PUBLISHED_BYTES = 8 << 20
add = argparse.ArgumentParser.add_argument
def add_little(self, *names, **options):
    return add(self, *names, **(options | ({"default": 8} if "--size-mib" in names else {})))
argparse.ArgumentParser.add_argument = add_little
"""


def measured_with_little(folder: Path) -> dict[str, str]:
    """Variables with which pods exchange 8 MiB, which takes no seconds, in the place of 1 GiB."""
    (folder / "sitecustomize.py").write_text(LITTLE)
    return {"PYTHONPATH": str(folder)}


def test_pods_measure_before_training_and_keep_the_result(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("".join(f"line {i} of a text\n" for i in range(2000)))
    (tmp_path / "config.yaml").write_text(CONFIG)
    words = ["-m", "trainyard", "pod", "--config", f"{tmp_path}/config.yaml"]
    words += ["--run-dir", f"{tmp_path}/run", "--set", "compute.network_test=true"]
    words += ["--set", f"data.train_path={tmp_path}/train.txt", "--set", "training.max_steps=2"]
    words += ["--set", f"data.prepared_directory={tmp_path}/prepared"]
    for ended, out, errors in on_two_nodes(words, **measured_with_little(tmp_path)):
        assert ended == 0, errors
        assert "all-reduce at" in out, errors
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    measured = [event for event in events if event["event"] == "network_measured"]
    assert [(one["ok"], one["processes"]) for one in measured] == [(True, 2)]
    assert not list(tmp_path.glob("*.network-*"))


def test_pods_on_a_slow_network_end_before_they_train(tmp_path: Path) -> None:
    """Loopback passed off as p5.48xlarge: gloo is far below half of the published figure."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    words = ["-m", "trainyard", "pod", "--config", f"{tmp_path}/config.yaml"]
    words += ["--run-dir", f"{tmp_path}/run", "--set", "compute.network_test=true"]
    small = measured_with_little(tmp_path)
    for code, out, errors in on_two_nodes(words, TRAINYARD_INSTANCE_TYPE="ml.p5.48xlarge", **small):
        assert code == ExitCode.NOT_PROVEN, errors
        assert "the floor is 218 GB/s" in out
        found = explain_logs([log_of("pod", errors)], exit_code=code)
        assert found.klass == "slow-network"
    assert not (tmp_path / "run").exists(), "nothing was trained"


__all__ = ["nodes"]
FORM = VERSIONS["nccl 2.30, plugin 1.21"]
# It is preloaded into each worker. It writes where NCCL_DEBUG_FILE says, as NCCL does, once the process group
# exists. Programs of others and our own trainer are started by the same command.
STAND_IN = """
import os, pathlib
if "LOCAL_RANK" in os.environ:
    import torch.distributed as dist
    join = dist.init_process_group

    def join_as_nccl_does(*args, **options):
        join(*args, **options)
        place, rank = os.environ["NCCL_DEBUG_FILE"], os.environ["RANK"]
        for sign, value in (("%h", "machine-" + rank), ("%p", str(os.getpid())), ("%%", "%")):
            place = place.replace(sign, value)
        log = pathlib.Path(os.environ["REPLAYED"], f"rank-{rank}.log").read_text()
        pathlib.Path(place).write_text(log)

    dist.init_process_group = join_as_nccl_does
"""
PROGRAM = """
import json, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
weight = torch.zeros(1)
for step in range(1, 13):
    gradient = torch.tensor([weight.item() - dist.get_rank()])
    dist.all_reduce(gradient)
    weight -= 0.1 * gradient
    time.sleep(0.5)
    if dist.get_rank() == 0:
        print(json.dumps({"step": step, "loss": float((weight - 0.5) ** 2 + 1)}), flush=True)
dist.destroy_process_group()
"""
ENDLESS = PROGRAM.replace("range(1, 13)", "range(1, 100_000)")
COMMAND = """
recipe: command
program: {{command: [{python}, {script}], processes: 1, data: []}}
compute: {{network: efa}}
"""


def replay(nodes: Nodes, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (nodes.folder / "sitecustomize.py").write_text(STAND_IN)
    for rank in range(2):
        lines = process(FORM, cases(FORM)[case], rank, 2)
        (nodes.folder / f"rank-{rank}.log").write_text("".join(lines))
    monkeypatch.setenv("PYTHONPATH", str(nodes.folder))
    monkeypatch.setenv("REPLAYED", str(nodes.folder))
    monkeypatch.setenv("TRAINYARD_INSTANCE_TYPE", "ml.p5.48xlarge")


def write_program(nodes: Nodes, text: str) -> None:
    """Write a program and its configuration."""
    script = nodes.folder / "train.py"
    script.write_text(text)
    config = COMMAND.format(python=json.dumps(sys.executable), script=json.dumps(str(script)))
    (nodes.folder / "config.yaml").write_text(config)


def network_part(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    prove.main(["--run-dir", str(folder), "--only", "network", "--json"])
    parts = json.loads(capsys.readouterr().out)["parts"]
    return next(part for part in parts if part["name"] == "network")


def test_a_run_whose_channels_are_all_of_efa_is_proven(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replay(nodes, "direct", monkeypatch)
    (nodes.folder / "config.yaml").write_text(CONFIG)
    settings, name = ("compute.network=efa", "training.max_steps=4"), "trainer-direct"
    for code, errors in nodes.finish_all(environments("trainjob"), *settings, run_dir=name):
        assert code == 0, errors
        assert "NCCL INFO" not in errors, "the log of NCCL stays in its file"
    assert len(list((nodes.folder / name / "logs").glob("nccl-*.log"))) == 2
    part = network_part(nodes.folder / name, capsys)
    assert part["passed"], part
    assert part["evidence"].startswith(
        "2 processes on several machines, every channel over EFA with GPUDirect"
    )


def test_pods_without_a_rank_are_numbered_by_their_names(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """HyperPod's agent numbers the workers; one pod keeps the records, and each has a log of its own."""
    replay(nodes, "direct", monkeypatch)
    write_program(nodes, PROGRAM)
    pods = hyperpod(nodes.folder)
    pods = [{**pod, "TRAINYARD_POD": f"llama-pods-{number}"} for number, pod in enumerate(pods)]
    for code, errors in nodes.finish_all(pods, run_dir="agent"):
        assert code == 0, errors
    logs = nodes.folder / "agent" / "logs"
    assert sorted(log.name for log in logs.glob("node-*.log")) == ["node-0.log", "node-1.log"]
    assert {log.name.split("-")[2] for log in logs.glob("nccl-node-*.log")} == {"0", "1"}
    lines = (nodes.folder / "agent" / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines].count("started") == 1
    rows = (nodes.folder / "agent" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == list(range(1, 13))
    assert network_part(nodes.folder / "agent", capsys)["passed"]


def test_a_run_that_opened_sockets_is_ended_and_red(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replay(nodes, "sockets", monkeypatch)
    name = "sockets"
    write_program(nodes, ENDLESS)
    both = nodes.finish_all(environments("trainjob"), run_dir=name)
    assert [code for code, _ in both] == [ExitCode.NOT_PROVEN] * 2, both
    run = nodes.record(name)
    outcome = run["outcome"]
    assert outcome["status"] == "failed"
    assert outcome["reason"].startswith(
        "NCCL opened sockets between machines that have EFA: NCCL did not find"
    )
    assert outcome["failure"]["class"] == "tcp-fallback"
    part = network_part(nodes.folder / name, capsys)
    assert not part["passed"]
    assert part["evidence"].startswith("tcp-fallback: NCCL did not find the plugin of EFA")
    log = nodes.folder / "errors.log"
    for code, errors in both:
        log.write_text(errors)
        explain.main(["--log", str(log), "--exit-code", str(code), "--json"])
        found = json.loads(capsys.readouterr().out)
        assert (found["class"], found["retryable"]) == ("tcp-fallback", False)
