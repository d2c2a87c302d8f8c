"""Whether the machine of a job goes with it, by the process that runs the job."""

import os
from pathlib import Path

from trainyard.gateways.actions_runner import lost_machine
from trainyard.gateways.local_machine import process_family


def test_an_ephemeral_runner_is_known_by_the_process_that_started_the_job(tmp_path: Path) -> None:
    """tests/scripts/test_step_environment.py finds it by the workspace."""
    proc, programs = tmp_path / "proc", tmp_path / "actions-runner" / "bin.2.337.0"
    programs.mkdir(parents=True)
    for pid, parent, program in (
        (os.getpid(), 50, "/bin/bash"),
        (50, 40, "/bin/bash"),
        (40, 0, programs / "Runner.Worker"),
    ):
        (folder := proc / str(pid)).mkdir(parents=True)
        (folder / "status").write_text(f"Name:\tx\nPPid:\t{parent}\n")
        (folder / "exe").symlink_to(program)
    family = process_family(os.getpid(), proc)
    for registration, expected in (('{"ephemeral": true}', "an ephemeral runner"), ("{}", ""), ("no", "")):
        (programs.parent / ".runner").write_text(registration)
        for actions, found in (("true", expected), ("", "")):
            assert lost_machine(family, {"GITHUB_ACTIONS": actions}, proc=proc) == found
