"""The GitHub runner that runs this job: whether its machine goes with the job.

The runner's folder is found by the process Runner.Worker, which started the job, or else by the workspace
inside it; a container of a job may see neither.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from trainyard.gateways.process_tree import ancestors


def lost_machine(environment: Mapping[str, str] = os.environ) -> str:
    """Return what the machine of this job is if it, and its disk, goes with the job; empty if it stays.

    `.runner` is the file of the runner's own registration.
    """
    if environment.get("GITHUB_ACTIONS") != "true":
        return ""
    if environment.get("RUNNER_ENVIRONMENT") == "github-hosted":
        return "a machine of GitHub"
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "a pod"
    for programs in _program_folders(environment):
        with suppress(OSError, ValueError):
            registration = json.loads((programs.parent / ".runner").read_text(encoding="utf-8-sig"))
            if str(registration.get("ephemeral") or registration.get("Ephemeral")).lower() == "true":
                return "an ephemeral runner"
    return ""


def _program_folders(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders that may hold the runner's programs."""
    for process in ancestors(os.getpid()):
        if process.program.name == "Runner.Worker":
            yield process.program.parent
    if workspace := environment.get("RUNNER_WORKSPACE"):
        root = Path(workspace).parent.parent  # _work/REPOSITORY
        if (root / "bin" / "Runner.Listener").exists():
            yield root / "bin"
