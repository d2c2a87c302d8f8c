"""The version of this job's runner, from each place that may show it."""

import os
from pathlib import Path

import pytest

from trainyard.gateways.actions_runner import runner_version
from trainyard.gateways.local_machine import process_family

JOB = {"GITHUB_ACTIONS": "true", "RUNNER_ENVIRONMENT": "self-hosted"}
UPDATED, FIRST = "bin.2.337.0", "bin"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc in which this process was started by process 50, and that one by process 40."""
    for pid, parent in ((os.getpid(), 50), (50, 40), (40, 0)):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "status").write_text(f"Name:\tx\nPPid:\t{parent}\n")
        (folder / "exe").symlink_to("/bin/bash")
    return tmp_path / "proc"


def install(root: Path, folder: str, source: str) -> Path:
    """Lay out a runner's folder as a first installation or an update leaves it."""
    programs = root / folder
    programs.mkdir(parents=True)
    if folder != FIRST:
        (root / FIRST).symlink_to(folder)
    listener = programs / "Runner.Listener"
    listener.write_text(f"#!/bin/sh\n{'echo 2.336.0' if source == 'program' else 'exit 1'}\n")
    listener.chmod(0o755)
    return programs


@pytest.mark.parametrize("by", ["process", "workspace"])
@pytest.mark.parametrize("source", ["program", "nothing"])
@pytest.mark.parametrize("folder", [UPDATED, FIRST])
def test_the_version_is_found(tmp_path: Path, proc: Path, folder: str, source: str, by: str) -> None:
    root = tmp_path / "actions-runner"
    programs = install(root, folder, source)
    environment = dict(JOB)
    if by == "process":
        (proc / "40" / "exe").unlink()
        (proc / "40" / "exe").symlink_to(programs / "Runner.Worker")
    else:
        environment["RUNNER_WORKSPACE"] = str(root / "_work" / "lab")
    known = {"program": "2.336.0", "nothing": None}[source]
    assert runner_version(process_family(os.getpid(), proc), environment, proc=proc) == (
        "2.337.0" if folder == UPDATED else known
    )


@pytest.mark.parametrize(
    "change", [{"GITHUB_ACTIONS": ""}, {"RUNNER_ENVIRONMENT": "github-hosted"}, {"RUNNER_WORKSPACE": "/a"}]
)
def test_elsewhere_no_version_is_known(tmp_path: Path, proc: Path, change: dict[str, str]) -> None:
    install(tmp_path / "actions-runner", UPDATED, "program")
    environment = {**JOB, "RUNNER_WORKSPACE": str(tmp_path / "actions-runner/_work/lab"), **change}
    assert runner_version(process_family(os.getpid(), proc), environment, proc=proc) is None
