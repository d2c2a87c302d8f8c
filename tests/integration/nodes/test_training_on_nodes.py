"""Training that really runs in pods: trained, stored into a real S3 server, proven, equal to the bit."""

import random
from typing import Any

import pytest
from tests.integration.job_world import NAMESPACE
from tests.integration.nodes.conftest import OPERATORS, RAY_PYTHON, Nodes, planted

pytestmark = pytest.mark.slow


def require_ray(kind: str) -> None:
    if kind == "rayjob" and not RAY_PYTHON:
        pytest.skip("needs Ray: set RAY_PYTHON to a Python that has ray and this package")


@pytest.mark.parametrize("kind", OPERATORS)
def test_two_pods_train_store_and_are_proven_equal_to_two_processes_without_a_cluster(
    kind: str, nodes: Nodes, reference: Any
) -> None:
    require_ray(kind)
    job = f"plain-{kind}"
    told = nodes.deploy(job, kind, "--wait", "--timeout", "12m")
    assert "Succeeded" in told
    assert nodes.digest(job) == reference
    proof = nodes.prove(job)
    assert proof["proven"] is True, proof
    again = nodes.deploy(job, kind)
    assert "exists already, with the same plan" in again
    assert "Succeeded" in again, "a job that has ended is told as it ended, also without --wait"


def test_a_pod_that_is_killed_at_a_random_step_resumes_and_ends_equal(nodes: Nodes, reference: Any) -> None:
    step = random.randrange(3, 10)
    slow = planted("killed", "slow")
    nodes.deploy("killed", "pytorchjob", *slow)
    nodes.wait_for_step("killed", step)
    [worker] = [name for name in nodes.pods("killed") if "worker" in name]
    nodes.plane.kubectl("exec", worker, "-c", "pytorch", "--", "sh", "-c", "kill -9 -1 || true")
    told = nodes.deploy("killed", "pytorchjob", *slow, "--wait", "--timeout", "12m")
    assert "Succeeded" in told
    assert nodes.digest("killed") == reference, f"killed at step {step}"
    assert nodes.prove("killed")["proven"] is True


ENDLESS = {"training__max_steps": 100000, "checkpointing__save_steps": 100000, "cluster__pod__restarts": 0}


def test_sigterm_with_grace_ends_in_75_with_a_whole_checkpoint(nodes: Nodes) -> None:
    nodes.deploy("stopped", "pytorchjob", **ENDLESS)
    nodes.wait_for_step("stopped", 3)
    for pod in nodes.pods("stopped"):
        nodes.plane.kubectl("exec", pod, "-c", "pytorch", "--", "sh", "-c", "kill -TERM 1")
    told = nodes.deploy("stopped", "pytorchjob", "--wait", "--timeout", "10m", code=75, **ENDLESS)
    assert "with a good checkpoint" in told
    outcome = nodes.run("stopped")["outcome"]
    assert (outcome["status"], outcome["exit_code"]) == ("stopped", 75)
    assert list((nodes.folder / NAMESPACE / "stopped" / "checkpoints").glob("step-*/manifest.json"))
