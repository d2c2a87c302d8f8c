"""Each failure of a job on real nodes has its class, and recovers or does not, as the table of `watch` says.

The trainer is the shipped one; what fails in it is planted by `faults/sitecustomize.py`, as user code would
fail. A job that recovers resumes from its newest checkpoint and ends with the bits of one that never failed.
"""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration.nodes.conftest import Nodes, planted
from tests.waiting import wait_for

from trainyard.watch.failure_classes import RECOVERABLE, FailureClass

pytestmark = pytest.mark.slow
BUDGET = 2
SETTINGS: dict[str, Any] = {"cluster__pod__restarts": 0, "monitoring__hang_seconds": 10}
"""The operator restarts no pod, so each failure is one of the job; a hang is noticed soon."""
HEALING = (f"--auto-retry={BUDGET}", "--monitor", "--timeout=15m")
FAULT_STEP = 7
"""After the checkpoints of steps 3 and 6."""
REGISTRY = Path(__file__).parent / "empty_registry.py"
REGISTRY_PORT = 5000
NO_IMAGE = f"127.0.0.1:{REGISTRY_PORT}/team/nothing@sha256:{'a' * 64}"
SMALL_DISK = 32 << 20
"""Enough for the prepared tokens and a checkpoint, and not for three of them."""


@dataclass(frozen=True)
class Failure:
    """A way to fail, and its class."""

    expected: FailureClass
    fault: str = ""
    """Of faults/sitecustomize.py."""
    settings: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()


FAILURES = {
    # A busy machine needs longer to fill the memory than the others wait for a step.
    "memory": Failure(FailureClass.HOST_MEMORY, "memory", {"monitoring__hang_seconds": 300}),
    "image": Failure(FailureClass.IMAGE_PULL, options=("--image-uri", NO_IMAGE)),
    "raises": Failure(FailureClass.USER_CODE, "raises"),
    "diverges": Failure(
        FailureClass.NOT_FINITE, settings={"training__learning_rate": 1e30, "training__warmup_steps": 1}
    ),
    "disk": Failure(FailureClass.DISK_FULL, settings={"claim": "small"}),
    "hangs": Failure(FailureClass.HANG, "hangs"),
    "killed": Failure(FailureClass.UNKNOWN, "killed"),
}
"""The loss of a node is in test_lost_nodes.py."""


@pytest.fixture(scope="module")
def _registry(nodes: Nodes) -> None:
    """A registry without any image, on each node's own loopback."""
    for node in nodes.plane.nodes.values():
        node.spawn("registry", node.inside(sys.executable, str(REGISTRY), str(REGISTRY_PORT)))


@pytest.fixture(scope="module")
def _small_disk(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The claim `small` on a file system with less room than the checkpoints need, shared by the nodes."""
    image = tmp_path_factory.mktemp("disk") / "image"
    with image.open("wb") as file:
        file.truncate(SMALL_DISK)
    subprocess.run(
        ["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(image)], check=True, timeout=60
    )
    folder = nodes.claim("small")
    for node in nodes.plane.nodes.values():
        node.run("mount", "-o", "loop", str(image), str(folder))


def test_a_watcher_that_is_killed_between_two_retries_is_replaced_and_the_budget_holds(
    nodes: Nodes, reference: Any
) -> None:
    """The first two attempts hang, the second after a later checkpoint; the third does not."""
    options = (*planted("watched", "hangs", 4, 7), *HEALING)
    line = nodes.line("watched", "pytorchjob", *options, **SETTINGS)
    for job in ("watched", "watched-2"):
        with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as watcher:
            claimed = partial(is_claimed, nodes, job)
            wait_for(claimed, f"the claim of the retry of {job}", within=1200)
            watcher.kill()
        assert nodes.jobs("watched")[-1] == job, "it died in its back-off"
    told = nodes.deploy("watched", "pytorchjob", *options, **SETTINGS)
    assert "Succeeded" in told
    assert nodes.jobs("watched") == ["watched", "watched-2", "watched-3"]
    record = json.loads(nodes.notes("watched-3")["trainyard.dev/retry-record"])
    assert (record["spent"], [attempt["step"] for attempt in record["attempts"]]) == (BUDGET, [3, 6])
    assert nodes.digest("watched") == reference
    assert nodes.prove("watched")["proven"] is True


def is_claimed(nodes: Nodes, job: str) -> bool:
    return job in nodes.jobs("watched") and "trainyard.dev/retry-claim" in nodes.notes(job)


@pytest.mark.usefixtures("_registry", "_small_disk")
@pytest.mark.parametrize("name", FAILURES)
def test_each_failure_has_its_class_and_heals_or_does_not(name: str, nodes: Nodes, reference: Any) -> None:
    failure = FAILURES[name]
    options = (*failure.options, *(planted(name, failure.fault, FAULT_STEP) if failure.fault else ()))
    line = nodes.line(name, "pytorchjob", *options, *HEALING, **{**SETTINGS, **failure.settings})
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as watcher:
        told, _ = watcher.communicate(timeout=1200)
    recovers = failure.expected in (*RECOVERABLE, FailureClass.UNKNOWN)  # unknown: once, as steps were made
    expected = (0, [name, f"{name}-2"]) if recovers else (1, [name])
    assert (watcher.returncode, nodes.jobs(name)) == expected, told
    if recovers:
        assert nodes.digest(name) == reference
        assert nodes.prove(name)["proven"] is True
        record = json.loads(nodes.notes(f"{name}-2")["trainyard.dev/retry-record"])
        [attempt] = record["attempts"]
        assert (record["spent"], attempt["failure_class"]) == (1, failure.expected), told
        assert attempt["step"] is not None, told
        assert attempt["step"] >= FAULT_STEP - 1, "from the newest checkpoint"
    else:
        assert f"no retry recovers from {failure.expected}" in " ".join(told.split())
        later = json.loads(nodes.manage("status", name, "--json", code=None))
        assert later["retries"] == 0
        if later["failure"] is not None:  # None while the pull of an image is retried
            classes = (failure.expected, FailureClass.UNKNOWN)
            assert later["failure"]["class"] in classes, "the operator may have removed the pod that failed"
