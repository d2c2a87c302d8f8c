"""The network is really measured before training: torch's all-reduce by gloo over loopback, as pods do it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import warm_start
from tests.integration.test_launchers import CONFIG, environments

from trainyard.errors import ExitCode
from trainyard.watch.failure_logs.failure_explanation import explain_logs
from trainyard.watch.failure_logs.log_text import log_of

pytestmark = pytest.mark.slow
OURS = ("PET_", "TRAINYARD_", "MASTER_", "WORLD_", "RANK", "LOCAL_", "NCCL_", "JOB_COMPLETION")


def on_two_nodes(words: list[str], **more: str) -> list[tuple[int, str, str]]:
    """Run a command as two pods of a TrainJob do; return exit code, stdout and stderr of each."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    started = [
        warm_start.Popen(
            [sys.executable, *words],
            env={**clean, **place, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for place in environments("trainjob")
    ]
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
    alone = subprocess.run(
        [sys.executable, *words], env=clean | place, capture_output=True, text=True, timeout=60
    )
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
