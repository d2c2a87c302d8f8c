"""Whether the machine of a job goes with it, by the process that runs the job."""

import os
from pathlib import Path

import pytest

from trainyard.gateways import process_tree
from trainyard.gateways.actions_runner import lost_machine


def test_an_ephemeral_runner_is_known_by_the_process_that_started_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/scripts/test_step_environment.py finds it by the workspace."""
    proc, programs = tmp_path / "proc", tmp_path / "actions-runner" / "bin.2.337.0"
    programs.mkdir(parents=True)
    monkeypatch.setattr(process_tree, "_PROC", proc)
    for pid, parent, program in (
        (os.getpid(), 50, "/bin/bash"),
        (50, 40, "/bin/bash"),
        (40, 0, programs / "Runner.Worker"),
    ):
        (folder := proc / str(pid)).mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (a (name) R {parent}{' 1' * 20}\n")
        (folder / "exe").symlink_to(program)
    for registration, expected in (('{"ephemeral": true}', "an ephemeral runner"), ("{}", ""), ("no", "")):
        (programs.parent / ".runner").write_text(registration)
        for actions, found in (("true", expected), ("", "")):
            assert lost_machine({"GITHUB_ACTIONS": actions}) == found
