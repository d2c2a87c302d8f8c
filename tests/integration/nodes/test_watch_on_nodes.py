"""`trainyard watch --job` watches a job of two real pods while it trains, and ends with the job."""

import json
import subprocess
import sys
from typing import Any

import pytest
from tests.integration.job_world import NAMESPACE
from tests.integration.nodes.conftest import STEPS, Nodes

pytestmark = pytest.mark.slow
JOB = "watched"


def watch_line(nodes: Nodes, *options: str) -> list[str]:
    place = ("--kubeconfig", str(nodes.plane.kubeconfig), "--namespace", NAMESPACE)
    return [sys.executable, "-m", "trainyard", "watch", "--job", JOB, *place, *options]


def test_a_job_is_watched_in_its_pods_until_it_has_ended(nodes: Nodes) -> None:
    steps = 20 * STEPS
    settings: dict[str, Any] = {"training__max_steps": steps, "checkpointing__save_steps": 5 * STEPS}
    deployed = subprocess.Popen(
        nodes.line(JOB, "pytorchjob", "--monitor", "--timeout=9m", **settings),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    nodes.wait_for_step(JOB, 3)
    once = subprocess.run(watch_line(nodes, "--once", "--json"), capture_output=True, text=True, timeout=120)
    look = json.loads(once.stdout)
    assert (once.returncode, look["health"], look["unknown"]) == (0, "healthy", []), once.stderr
    assert (look["job"]["job"], look["job"]["pods"]["running"], look["steps"]) == (JOB, 2, steps)
    assert 3 <= look["step"] < steps
    assert sorted(node["node"] for node in look["nodes"]) == [f"{JOB}-master-0", f"{JOB}-worker-0"]
    followed = subprocess.run(watch_line(nodes, "--every=2s"), capture_output=True, text=True, timeout=560)
    assert followed.returncode == 0, followed.stderr
    assert followed.stdout.startswith(f"{JOB} · pytorchjob · succeeded"), followed.stdout
    assert "read " in followed.stdout and "ago; the pods are gone" in followed.stdout
    assert f"/{steps}   loss " in followed.stdout, "the last figures stay"
    assert deployed.wait(timeout=60) == 0
