"""Two machines train over gloo; a stand-in writes the log that NCCL would have written, and it is judged.

The stand-in is preloaded into each worker. It writes where `NCCL_DEBUG_FILE` says, as NCCL does, once the
process group exists. Programs of others and our own trainer are started by the same command.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_launchers import CONFIG, Nodes, environments, hyperpod, nodes
from tests.unit.watch.test_network_verdict import VERSIONS, cases, process

from trainyard.commands import explain, prove
from trainyard.errors import ExitCode

__all__ = ["nodes"]
pytestmark = pytest.mark.slow
FORM = VERSIONS["nccl 2.30, plugin 1.21"]
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
